"""The held-out numbers: the same for every batch size, and what is said where there is nothing to read."""

import json

import numpy as np
import pytest
from training_config import FILES, LINES, write_config

from hyperparallel import Transport
from hyperparallel.cli import main
from hyperparallel.errors import DataError
from hyperparallel.training.build import build_layers
from hyperparallel.training.config import load_config
from hyperparallel.training.evaluation import evaluate, held_out_feed
from hyperparallel.training.planning import build_plan
from hyperparallel.training.runners import build_runner
from hyperparallel.training.trainer import train

TEXTS = ["nothing two", "six", "one one one", "seven", "four two"]
BATCHES = [(4, 2, 1), (5, 2, 1), (6, 2, 1), (8, 4, 1), (3, 1, 1), (20, 3, 1), (8, 2, 2), (12, 2, 3)]
"""Samples of a step, micro-batches, and passes that accumulate."""


@pytest.fixture
def texts(tmp_path):
    """Write five held-out lines, of which the third cannot be used and the first is the longest; return the job."""
    good = [json.dumps({"prompt": "reads", "response": text}) for text in TEXTS]
    (tmp_path / "train.jsonl").write_text(good[0] + "\n")
    (tmp_path / "held_out.jsonl").write_text("\n".join([*good[:2], "{", *good[2:]]) + "\n")
    data = FILES.format(folder=tmp_path) + f"  held_out_path: {tmp_path}/held_out.jsonl\n  on_error: skip\n"
    return write_config(tmp_path, LINES.replace("data:\n  max_images: 1\n", data))


def read(path, *wanted):
    """Evaluate untrained weights, which are the same for every cut.

    Args:
        path: the configuration.
        wanted: samples that are asked for, and how the batch is cut.
    """
    runners, found = {}, []
    for samples, (batch, micro_batches, passes) in wanted:
        cut = [f"training.batch_size={batch}", f"training.micro_batches={micro_batches}"]
        words = ["parallel.ranks=1", "run.jit=false", f"evaluation.samples={samples}", *cut]
        config = load_config(path, [*words, f"training.accumulate={passes}"])
        if micro_batches not in runners:
            layers = build_layers(config)
            runners[micro_batches] = build_runner(config, build_plan(config, layers), layers, Transport())
        found.append(evaluate(runners[micro_batches], held_out_feed(config), Transport()))
    return found


def check(found, count):
    assert all(one["samples"] == count for one in found)
    assert len({one["exact"] for one in found}) == 1
    losses = [one["held_out_loss"] for one in found]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


@pytest.mark.parametrize(("asked", "count"), [(3, 3), (5, 5), (512, 5)])
def test_numbers_do_not_depend_on_the_batch_size(texts, asked, count):
    check(read(texts, *((asked, cut) for cut in BATCHES)), count)


def test_digits_have_as_many_as_are_asked_for(tmp_path):
    check(read(write_config(tmp_path), *((7, cut) for cut in BATCHES[:4])), 7)


def test_every_sample_weighs_by_its_labels(texts):
    """The loss of all is the mean over labels of the losses of the first few."""
    losses = [one["held_out_loss"] for one in read(texts, *((count, BATCHES[0]) for count in range(1, 6)))]
    labels = [1 + len(text.split()) for text in TEXTS]
    sums = [loss * sum(labels[: count + 1]) for count, loss in enumerate(losses)]
    each = np.diff(sums, prepend=0) / labels
    assert all(1 < loss < 6 for loss in each)  # undecided among 16 words is log(16) = 2.8


@pytest.mark.parametrize("line", [b'{"prompt": "", "response": ""}', b""])
def test_without_a_label_it_is_said_before_anything_runs(texts, tmp_path, capsys, monkeypatch, line):
    monkeypatch.setattr("hyperparallel.training.job.start_job", lambda *_: pytest.fail("a job was started"))
    (tmp_path / "held_out.jsonl").write_bytes(line + b"\n")
    words = "none of the 1 held-out samples has a label" if line else "held_out.jsonl: has no lines"
    overrides = ["evaluation.samples=4", "data.tokens.bos=null"]
    assert main(["train", str(texts), *overrides]) == 2
    assert words in capsys.readouterr().err
    with pytest.raises(DataError, match=words):
        train(load_config(texts, ["parallel.ranks=1", *overrides]), Transport(), tmp_path)


class Differing(Transport):
    """Two workers, of which the other one has something else."""

    size = 2

    def sum(self, array, *_):
        return array + np.eye(2, dtype=array.dtype)[1]


def test_ranks_that_skip_other_lines_stop(texts):
    with pytest.raises(DataError, match="workers 0 and 1 read different held-out samples"):
        evaluate(None, held_out_feed(load_config(texts, ["evaluation.samples=2"])), Differing())
