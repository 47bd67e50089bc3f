"""The command `profile`: what it refuses, and how it lays its result out."""

from argparse import Namespace
from pathlib import Path

import pytest

from hyperparallel.commands.profile import report, run
from hyperparallel.cost.measured import Fit, MeasuredCosts, MeasuredLayer, MeasuredStage
from hyperparallel.errors import HyperParallelError

CONFIG = Path(__file__).parents[2] / "yaml" / "digits.yaml"
COSTS = MeasuredCosts(
    device="CPU",
    conditions={},
    sizes=[{"images": 1, "samples": 2, "tokens": 16}, {"images": 9, "samples": 2, "tokens": 80}],
    alpha=0.004,
    beta=1e-9,
    call={"F": 0.001, "B": 0.002},
    layers=[
        MeasuredLayer(name="a", trainable=False, work=1, forward=Fit(base=0.5, image=0.25, error=0.1), backward=None),
        MeasuredLayer(name="b", trainable=True, work=1, forward=Fit(base=1), backward=Fit(base=2, token=0.125)),
    ],
    stages=[MeasuredStage(layers=(0, 2), kind="F", error=-0.05, held_out=0.031)],
)


def test_the_report_has_layers_in_milliseconds_and_the_errors_of_stages():
    lines = report(COSTS).splitlines()
    assert lines[0] == "CPU; micro-batches of up to 9 images and 80 tokens"
    assert lines[1] == "a message takes 4.00 ms + 1.05 ms per MiB"
    assert lines[5].split() == ["a", "500.000", "250.0000", "0.000", "10.0%"]
    assert lines[6].split() == ["b", "1000.000", "0.0000", "0.000", "0.0%", "2000.000", "0.0000", "125000.000", "0.0%"]
    assert lines[-1].split() == ["a", "..", "b", "F", "-5.0%", "+3.1%"]


@pytest.mark.parametrize(
    ("out", "overrides", "words"),
    [
        (None, [], "profile needs --out; for example\n  hyperparallel profile"),
        ("costs.json", ["parallel.tensor_parallel=2"], "set parallel.tensor_parallel to 1"),
        ("no/such/costs.json", [], "there is no folder no/such; make it or give another place"),
        ("costs.json", ["training.batch_size=3"], "each needs at least one sample; raise batch_size to 4"),
        ("costs.json", ["schedule=1f1b(vison+llm)"], "did you mean 'vision'?"),
    ],
)
def test_mistakes_are_found_before_a_job_starts(out, overrides, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hyperparallel.training.job.start_job", lambda *_: pytest.fail("a job was started"))
    with pytest.raises(HyperParallelError) as error:
        run(Namespace(config=str(CONFIG), overrides=[*overrides, "run.out=out"], out=out))
    assert words in str(error.value) and list(tmp_path.iterdir()) == []
