"""`hyperparallel plan --scenario`: predicted ratios of a published experiment, and the assumptions that give its."""

from __future__ import annotations

import argparse
import json

from hyperparallel.commands.arguments import UsageError
from hyperparallel.planner.scenario import EVEN, Assumed, Range, Scenario, load_scenario, scan, step_times

EXAMPLE = "hyperparallel plan --scenario yaml/scenarios/paper_8.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option of `plan --scenario`."""
    parser.add_argument(
        "--scenario", metavar="FILE", help="predict the ratios of a published experiment under stated assumptions"
    )


def run(args: argparse.Namespace) -> int:
    """Print a scenario.

    Args:
        args: of `plan`.

    Raises:
        HyperParallelError: the file does not work, or comes with a schedule line.

    Returns:
        0.
    """
    if args.schedule is not None or args.config is not None or args.search:
        raise UsageError(f"--scenario FILE says all itself; leave the rest away, as in\n  {EXAMPLE}")
    scenario = load_scenario(args.scenario)
    times, ranges = step_times(scenario.assumed), scan(scenario)
    if args.json:
        print(json.dumps(as_json(scenario, times, ranges)))
    else:
        print(report(scenario, times, ranges))
    return 0


def as_json(scenario: Scenario, times: dict[str, float], ranges: list[Range]) -> dict:
    """Return what `--json` prints."""
    return {
        "source": scenario.source,
        "published_ratio": scenario.ratio,
        "assumed": scenario.assumed.model_dump(),
        "ratios": {line: times[EVEN] / time for line, time in times.items()},
        "ranges": [
            {**one.assumed.model_dump(exclude={"encoder_share"}), "even": one.over_even, "balanced": one.over_balanced}
            for one in ranges
        ],
    }


def report(scenario: Scenario, times: dict[str, float], ranges: list[Range]) -> str:
    """Lay out ratios under the assumptions, and the encoder shares that give the published one."""
    published = scenario.published
    lines = [
        f"scenario, not a reproduction: {scenario.source}",
        f"published    {published.before_s} s -> {published.after_s} s, {scenario.ratio:.3f}x",
        f"assumed      {_words(scenario.assumed)}, encoder {_percent(scenario.assumed.encoder_share)} of the computing",
        "",
        "predicted    over inline even",
        *(f"{times[EVEN] / time:11.2f}x   {line}" for line, time in times.items()),
        "",
        f"encoder share at which warmup reaches {scenario.ratio:.3f}x, by what it is compared with",
        "inline even   inline balanced   assumed",
        *(
            f"{_percent(one.over_even):>11}   {_percent(one.over_balanced):>15}   {_words(one.assumed)}"
            for one in ranges
        ),
        "",
        f"over inline even: {_interval([one.over_even for one in ranges])}",
        f"over inline balanced: {_interval([one.over_balanced for one in ranges])}",
    ]
    return "\n".join(lines)


def _words(assumed: Assumed) -> str:
    trained = "trained" if assumed.trained else "frozen"
    spread = f"long-tailed images (spread {assumed.spread:g})" if assumed.spread else "uniform images"
    return f"P = {assumed.ranks}, M = {assumed.micro_batches}, {trained}, {spread}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _interval(shares: list[float | None]) -> str:
    found = [share for share in shares if share is not None]
    if not found:
        return f"under none of the {len(shares)}"
    interval = f"encoder shares from {_percent(min(found))} to {_percent(max(found))}"
    return f"under {len(found)} of the {len(shares)}, at {interval}"
