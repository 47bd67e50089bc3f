"""Print predicted beside simulated peak memory, per schedule and rank, from dry runs at level 1.

    python scripts/measure_memory.py [--ranks 2,4] [--folder memory] [--jobs 2] [--only]

Every rank is compiled by MindSpore's Ascend back end in a process of its own, 5 to 15 seconds of processor time each.
What the folder holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

WIDTH, BLOCKS, ROWS, TOKENS, IMAGES, PIXELS = 128, 3, 4, 64, 8, 16
INLINE = ("1f1b(vision+llm)", "gpipe(vision+llm)", "wave(vision+llm)", "zb(vision+llm)", "1f1b(vision+llm)*2")
TRANSPOSED = ("transpose(vision) >> 1f1b(llm)", "transpose(vision) >> zb(llm)")


class Case(NamedTuple):
    """One plan: its schedule line, P, M, and whether the encoder trains."""

    schedule: str
    ranks: int
    micro_batches: int
    trained: bool = True


def grid(ranks: tuple[int, ...] = (2, 4)) -> Iterator[Case]:
    """List the whole grid."""
    for count in ranks:
        for micro_batches in (count, 2 * count):
            for schedule in (*INLINE, *TRANSPOSED):
                yield Case(schedule, count, micro_batches)
            for schedule in TRANSPOSED:
                yield Case(schedule, count, micro_batches, trained=False)


def model_of(case: Case):
    """Build layers, columns and plan: enough layers for 8 slabs, activations larger than parameters."""
    from hyperparallel import derive, model_spec
    from hyperparallel.cells.shapes import TensorSpec
    from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig, mllm

    vision = VisionConfig(image_size=PIXELS, width=WIDTH, depth=1, heads=4, ffn=4 * WIDTH, trainable=case.trained)
    llm = DecoderConfig(
        vocab_size=256, width=WIDTH, depth=BLOCKS, heads=4, kv_heads=2, ffn=3 * WIDTH, max_length=TOKENS, tied=True
    )
    layers = mllm(MllmConfig(vision=vision, llm=llm, image_token=3))
    texts = dict.fromkeys(("input_ids", "labels"), TensorSpec((ROWS, TOKENS), "int32"))
    columns = {
        "pixel_values": TensorSpec((IMAGES, 1, PIXELS, PIXELS)),
        "image_mask": TensorSpec((IMAGES,)),
        **texts,
    }
    return layers, columns, derive(case.schedule, model_spec(layers), case.ranks, case.micro_batches)


def simulate(case: Case) -> int:
    """Compile and "run" this process's rank; returns the peak."""
    import mindspore as ms
    import numpy as np

    from hyperparallel import AdamW, Transport
    from hyperparallel.cells.graph import GraphRunner

    layers, columns, plan = model_of(case)
    transport = Transport(ms.communication.get_rank(), ms.communication.get_group_size())
    runner = GraphRunner(plan, layers, columns, transport=transport, optimizer=AdamW())
    batch = [{name: np.ones(spec.shape, spec.dtype) for name, spec in columns.items()}] * case.micro_batches
    runner.cell(*runner.inputs(batch, None, runner.source))
    return ms.runtime.max_memory_allocated()


def worker(text: str, profile: str) -> None:
    """Be one rank of a dry run: measure layers, or simulate a case."""
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("Ascend", 0)
    ms.communication.init()
    case = Case(**json.loads(text))
    if profile:
        from hyperparallel.training.memory_profile import measure

        layers, columns, _ = model_of(case)
        measure(layers, columns, Path(profile))
        print("MEASURED")
    else:
        print("PEAK", simulate(case))


def run(case: Case, which: list[int] | None, profile: str, jobs: int) -> list[int | None]:
    """Start processes; returns the peaks, None for a rank that failed (its message is printed)."""
    from hyperparallel.dryrun import gist, run_ranks

    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--worker",
        json.dumps(case._asdict()),
        "--profile",
        profile,
    ]
    peaks: list[int | None] = []
    count = 1 if profile else case.ranks
    with TemporaryDirectory() as scratch:  # MindSpore leaves a folder where it runs
        done = run_ranks(command, count, which, level=1, timeout=600, jobs=jobs, cwd=scratch)
    for rank in done:
        lines = [line for line in rank.output.splitlines() if line.startswith(("PEAK", "MEASURED"))]
        if not rank.passed or not lines:
            print(f"{case} rank {rank.rank}: {rank.returncode}\n{gist(rank.output)}", file=sys.stderr)
        peaks.append(int(lines[0].split()[1]) if lines and lines[0].startswith("PEAK") else None)
    return peaks


def compare(cases: list[Case], folder: Path, jobs: int, only: bool = False) -> list[dict]:
    """Measure the layers once, then predict and simulate every rank.

    Args:
        cases: what to run.
        folder: gets `layers.json` and `rows.json`, and is read first.
        jobs: processes at a time.
        only: simulate nothing that `rows.json` does not hold.

    Returns:
        One row per case and rank.
    """
    from hyperparallel.training.memory_profile import predict, probes, read_profile

    profile, rows_file = folder.absolute() / "layers.json", folder / "rows.json"
    folder.mkdir(parents=True, exist_ok=True)
    done = {}
    if rows_file.exists():
        done = {tuple(key): peak for *key, peak in json.loads(rows_file.read_text(encoding="utf-8"))}
    for case in {case.trained: case for case in cases}.values():
        layers, columns, _ = model_of(case)
        if any(probe.kind not in read_profile(profile) for probe in probes(layers, columns)):
            run(case._replace(ranks=1), None, str(profile), jobs)
    rows = []
    for case in cases:
        layers, columns, plan = model_of(case)
        todo = [rank for rank in range(case.ranks) if (*case, rank) not in done]
        if todo and only:
            continue
        for rank, peak in zip(todo, run(case, todo, "", jobs) if todo else [], strict=True):
            if peak is not None:
                done[(*case, rank)] = peak
        rows_file.write_text(json.dumps([[*key, peak] for key, peak in done.items()]), encoding="utf-8")
        for rank, peak in enumerate(predict(plan, layers, columns, read_profile(profile))):
            if (*case, rank) in done:
                row = {**case._asdict(), "rank": rank, "predicted": peak.bytes, "simulated": done[(*case, rank)]}
                rows.append({**row, "at": str(peak.at or "end"), "live": peak.live})
                print(line_of(rows[-1]), flush=True)
    return rows


def disagreements(rows: list[dict], tie: float = 0.01) -> list[str]:
    """List the pairs of schedules that prediction and simulation order differently, by the fullest rank.

    Args:
        rows: from `compare`, whole cases.
        tie: relative difference up to which two simulated peaks count as equal.

    Returns:
        One line per pair; plans of the same model, P and M are compared.
    """
    groups: dict[tuple, dict[str, tuple[int, int]]] = {}
    for row in rows:
        group = groups.setdefault((row["ranks"], row["micro_batches"], row["trained"]), {})
        most = group.get(row["schedule"], (0, 0))
        group[row["schedule"]] = (max(most[0], row["simulated"]), max(most[1], row["predicted"]))
    found = []
    for group, peaks in groups.items():
        for (one, (real, guess)), (other, (real_2, guess_2)) in combinations(peaks.items(), 2):
            if abs(real / real_2 - 1) > tie and (real < real_2) != (guess < guess_2):
                found.append(f"{group}: {one} {real} / {guess}, {other} {real_2} / {guess_2}")
    return found


def line_of(row: dict) -> str:
    """Format a row of the table."""
    name = row["schedule"] + ("" if row["trained"] else ", frozen")
    ratio = row["predicted"] / row["simulated"]
    return (
        f"| {name} | {row['ranks']} | {row['micro_batches']} | {row['rank']} | {row['predicted'] / 1e6:.2f} | "
        f"{row['simulated'] / 1e6:.2f} | {ratio:.3f} | {row['at']} |"
    )


def main() -> None:
    """Run the grid, or one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4", help="P, one or more")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--folder", type=Path, default=Path("memory"), help="keeps what was measured")
    parser.add_argument("--only", action="store_true", help="simulate nothing new")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--profile", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.profile)
        return
    print("| schedule | P | M | rank | predicted MB | simulated MB | ratio | predicted at |")
    print("|---|---|---|---|---|---|---|---|")
    rows = compare(list(grid(tuple(map(int, options.ranks.split(","))))), options.folder, options.jobs, options.only)
    worst = max((abs(row["predicted"] / row["simulated"] - 1) for row in rows), default=0.0)
    print(f"\n{len(rows)} ranks, worst deviation {worst:.1%}")
    wrong = disagreements(rows)
    print(f"{len(wrong)} pairs of schedules in another order", *wrong, sep="\n")


if __name__ == "__main__":
    main()
