"""`hyperparallel plan --search`: the ten best layouts and schedule lines, and why the best wins."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.commands.arguments import UsageError, option_name, require, whole_number
from hyperparallel.cost.device import Device, load_device
from hyperparallel.cost.presets import load_model
from hyperparallel.limits import (
    MAX_BATCH,
    MAX_CELLS,
    MAX_IMAGES,
    MAX_LAYERS,
    MAX_SIDE,
    MAX_TOKENS,
    MAX_WORKERS,
    size_problem,
)
from hyperparallel.planner.candidates import DEFAULT, SKELETONS, Layout, layouts
from hyperparallel.planner.choose import BEST, Found, choose
from hyperparallel.planner.explain import explain
from hyperparallel.planner.limits import MemoryLimit, parse_limit
from hyperparallel.planner.rows import Job, Row
from hyperparallel.planner.shape_job import Batch, shape_job

EXAMPLE = (
    "hyperparallel plan --search --model vision=qwen2_vl_vit,llm=qwen3_8b --frozen vision --device ascend_910b "
    "--devices 8 --batch 64 --images 8 --tokens 4096"
)
_SHAPES = ("model", "device", "batch", "images", "tokens", "frozen", "image_size", "tensor", "text_layers", "recompute")
_OTHERS = ("schedule", "ranks", "micro_batches", "cost", "layers", "message", "out", "figure", "trace", "engine")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plan --search`."""
    group = parser.add_argument_group(
        "search", "layouts P x D, M and schedule lines for a CONFIG.yaml, or for a model of yaml/models by its shapes"
    )
    group.add_argument("--search", action="store_true", help="print the ten best, and why the best wins")
    group.add_argument(
        "--devices", type=whole_number(MAX_WORKERS), metavar="N", help="P x D x T (CONFIG.yaml: default as there)"
    )
    group.add_argument("--skeletons", metavar="NAME,...", help=f"backbones to try, of {', '.join(SKELETONS)}")
    group.add_argument("--model", metavar="PART=FILE,...", help="such as vision=qwen2_vl_vit,llm=qwen3_8b")
    group.add_argument("--device", metavar="FILE", help="of yaml/devices, such as ascend_910b")
    group.add_argument(
        "--batch", type=whole_number(MAX_BATCH), metavar="N", help="samples of a step, over all replicas"
    )
    group.add_argument("--images", type=_images, metavar="N", help="images of a sample, on average (default 1)")
    group.add_argument(
        "--tokens", type=whole_number(MAX_TOKENS), metavar="N", help="tokens of a sample, image tokens included"
    )
    group.add_argument("--frozen", metavar="PART,...", help="parts that are not trained")
    group.add_argument("--image-size", type=whole_number(MAX_SIDE), metavar="PIXELS", help="side of an image")
    group.add_argument(
        "--tensor", type=whole_number(MAX_WORKERS), metavar="T", help="devices that share a block (default 1)"
    )
    group.add_argument(
        "--text-layers",
        type=whole_number(MAX_LAYERS),
        metavar="N",
        help="first layers of the llm that may be transposed too",
    )
    group.add_argument("--recompute", action="store_true", help="every backward runs its forward again")


def asked(args: argparse.Namespace) -> bool:
    """Tell whether the search is asked for; its options mean nothing without it."""
    if not args.search:
        given = [
            option_name(name) for name in (*_SHAPES, "devices", "skeletons") if getattr(args, name) not in (None, False)
        ]
        if given:
            raise UsageError(f"{', '.join(given)}: only with --search; for example\n  {EXAMPLE}")
    return args.search


def run(args: argparse.Namespace) -> int:
    """Search, and print the best.

    Args:
        args: of `plan`.

    Raises:
        HyperParallelError: the arguments do not work, or nothing fits.

    Returns:
        0.
    """
    others = [option_name(name) for name in (*_OTHERS, "compare", "programs", "placement", "time_limit")]
    others = [name for name in others if getattr(args, name[2:].replace("-", "_")) not in (None, [], False)]
    if others:
        raise UsageError(f"--search chooses the schedule line itself, so it does not go with {', '.join(others)}")
    limit = MemoryLimit(None, None) if args.memory_limit is None else parse_limit(args.memory_limit)
    if args.config is not None:
        job, tried, device = _from_config(args)
    else:
        job, tried, device = _from_shapes(args)
    tried = plannable(tried)
    if device is not None and limit == (None, None):
        limit = MemoryLimit(None, device.memory_bytes)
    # What the runners here gain nothing from is not chosen for them.
    default = DEFAULT if args.config is None else [name for name in DEFAULT if name != "zb"]
    with tqdm(total=1.0, bar_format="{desc}{percentage:3.0f}%|{bar}|", disable=not sys.stderr.isatty()) as bar:
        found = choose(
            job,
            tried,
            memory_limit=limit.bytes,
            live_limit=limit.encodes,
            skeletons=_skeletons(args.skeletons) or default,
            progress=lambda done, total: bar.update(done / total - bar.n),
            **({} if args.work_limit is None else {"work_limit": args.work_limit}),
        )
    print(json.dumps(as_json(job, found)) if args.json else report(job, found, tried, limit))
    return 0


def report(job: Job, found: Found, tried: list[Layout], limit: MemoryLimit) -> str:
    """Lay out the ten best rows, and say why the first wins."""
    rows = found.rows[:BEST]
    known = rows[0].bytes is not None
    heads = ("step, ms", "of text-only", "GB" if known else "live", "bubble", "P", "D", "T", "M", "schedule")
    cells = [heads, *(_cells(row, found.text_only, known) for row in rows)]
    widths = [max(map(len, column)) for column in list(zip(*cells, strict=True))[:-1]]
    lines = ["  ".join([*map(str.rjust, one[:-1], widths), one[-1]]) for one in cells]
    within = "" if limit.bytes is None or not known else f" within {limit.bytes / 1e9:.1f} GB a rank"
    head = f"{found.bases} backbones on {len(tried)} layouts, {found.tried} lines planned{within}"
    notes = [f"best: {explain(job, found)}"]
    split = next((row for row in found.rows if row.base.skeleton != "zb"), None)
    if rows[0].base.skeleton == "zb" and split is not None:
        behind = 100 * (split.step_time / rows[0].step_time - 1)
        notes.append(
            f"the runners here gain nothing from a split backward (docs/split_backward.md); without zb the best is "
            f"{split.line} with {split.sizes}, {behind:.1f} % slower"
        )
    return "\n".join([head, "", *lines, "", *notes])


def _cells(row: Row, text: float, known: bool) -> tuple[str, ...]:
    memory = f"{row.bytes / 1e9:.1f}" if known and row.bytes is not None else str(max(row.timeline.peak_live))
    time = f"{row.step_time:,.0f}" if row.step_time >= 1000 else f"{row.step_time:.4g}"
    ranks, replicas, tensor, micro_batches = map(str, row.layout)
    share = f"{100 * text / row.step_time:.1f} %"
    return (time, share, memory, f"{100 * row.bubble:.1f} %", ranks, replicas, tensor, micro_batches, row.line)


def as_json(job: Job, found: Found) -> dict[str, Any]:
    """Return what `--json` prints; the keys are part of the interface. Times are milliseconds."""
    return {
        "rows": [
            {
                "schedule": row.line,
                **dict(zip(("ranks", "data_parallel", "tensor_parallel", "micro_batches"), row.layout, strict=True)),
                "step_time": row.step_time,
                "reduce_time": row.reduce,
                "of_text_only": found.text_only / row.step_time,
                "bytes": row.bytes,
                "peak_live": max(row.timeline.peak_live),
                "bubble": row.bubble,
                "live_limit": row.live_limit,
                "certificate": None if row.certificate is None else asdict(row.certificate),
            }
            for row in found.rows[:BEST]
        ],
        "text_only": found.text_only,
        "planned": found.tried,
        "excluded": found.excluded,
        "best": explain(job, found),
    }


def _from_shapes(args: argparse.Namespace) -> tuple[Job, list[Layout], Device]:
    """Make the job of a model by its shapes."""
    require("plan --search", EXAMPLE, **{name: getattr(args, name) for name in _NEEDED})
    tensor, frozen = args.tensor or 1, () if args.frozen is None else args.frozen.split(",")
    model = load_model(args.model, frozen=frozen, image_size=args.image_size, tensor=tensor)
    if "llm" not in model.parts:
        raise UsageError(f"--model {args.model!r} has no part llm to be the backbone; add llm=FILE")
    device = load_device(args.device)
    batch = Batch(args.batch, 1.0 if args.images is None else args.images, args.tokens)
    job = shape_job(model, device, batch, args.devices, recompute=args.recompute, text_layers=args.text_layers or 0)
    backbone = sum(count for part, count in zip(job.parts, job.layers, strict=True) if part not in job.encoder)
    return job, layouts(args.devices, args.batch, tensor, backbone), device


_NEEDED = ("model", "device", "devices", "batch", "tokens")


def _from_config(args: argparse.Namespace) -> tuple[Job, list[Layout], Device | None]:
    """Make the job of a configuration; only this needs the training package."""
    given = [option_name(name) for name in _SHAPES if getattr(args, name) not in (None, False)]
    if given:
        raise UsageError(f"CONFIG.yaml says what {', '.join(given)} would; change it with section.key=value")
    from hyperparallel.training.search import config_job

    job, tried, device = config_job(args.config, args.overrides, args.devices)
    return job, tried, device


def plannable(tried: list[Layout]) -> list[Layout]:
    """Leave out layouts whose plans would only fill the memory, and say how many.

    Raises:
        UsageError: all are.
    """
    problems = [size_problem(one.ranks, one.micro_batches, 1, ("P", "M")) for one in tried]
    kept = [one for one, problem in zip(tried, problems, strict=True) if problem is None]
    if not kept:
        raise UsageError(f"no layout is small enough to plan: {problems[0]}")
    if len(kept) < len(tried):
        left = len(tried) - len(kept)
        print(f"hyperparallel: {left} layouts with more than {MAX_CELLS} cells P x M are left out", file=sys.stderr)
    return kept


def _skeletons(text: str | None) -> list[str]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SKELETONS:
            hint = did_you_mean(name, SKELETONS)
            raise UsageError(f"--skeletons {text!r}: {name!r} is not one of {', '.join(SKELETONS)}{hint}")
    return names


def _images(text: str) -> float:
    """Read a number of images."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_IMAGES:
        raise argparse.ArgumentTypeError(f"expected a number of images from 0 to {MAX_IMAGES} such as 4, got {text!r}")
    return value
