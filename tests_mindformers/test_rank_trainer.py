"""Jobs from YAML through MindFormers' Trainer on CPU: what it prints is what its own wrapper prints in one process."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from mindformers_case import PROJECT, alone, train, write
from safetensors.numpy import load_file

FROZEN = {"model.model_config.freeze": ["vision.*"], "model.model_config.tie_word_embeddings": True}
"""A frozen encoder, and words that embedding and head share on different ranks."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def plain(folder):
    """The job without our block: MindFormers' own wrapper around the whole model, on all texts of a step at once."""

    def run(name: str, changes: dict):
        without = {
            **changes,
            "hyperparallel": None,
            "use_parallel": False,
            "parallel_config.pipeline_stage": 1,
            "runner_config.batch_size": 4,
        }
        path = write(folder / name, without)
        return alone(path.parent, [str(PROJECT / "tests_mindformers" / "plain_job.py"), str(path)])

    return {"trained": run("plain", {}), "frozen": run("plain_frozen", FROZEN)}


@pytest.fixture(scope="module")
def pipeline(folder):
    """Two ranks, five steps, a checkpoint after the third."""
    return train(folder / "p2", 2, {})


def load(job: Path, rank: int, step: int) -> dict[str, np.ndarray]:
    """Read a worker's checkpoint."""
    return load_file(job / "output" / "checkpoint" / f"rank_{rank}" / f"tiny_rank_{rank}-1_{step}.safetensors")


def assert_equal(workers, expected) -> None:
    """The loss monitor prints six digits."""
    for printed in workers:
        assert [one.step for one in printed] == [one.step for one in expected]
        np.testing.assert_allclose([one.loss for one in printed], [one.loss for one in expected], atol=1.5e-6)
        np.testing.assert_allclose([one.norm for one in printed], [one.norm for one in expected], rtol=1e-5)
        assert [one.lr for one in printed] == [one.lr for one in expected]


def test_two_ranks_equal_one_process(pipeline, plain):
    assert len(plain["trained"]) == 5
    assert_equal(pipeline, plain["trained"])
    assert plain["trained"][-1].loss < plain["trained"][0].loss


def test_a_frozen_encoder_and_tied_words_equal_one_process(folder, plain):
    assert_equal(train(folder / "frozen", 2, FROZEN), plain["frozen"])
    for rank in range(2):
        first, last = (load(folder / "frozen", rank, step) for step in (3, 5))
        for name in first:
            if name.startswith(("decoder.", "embedding.", "output_layer.")):
                assert (first[name] != last[name]).any(), name
            if name.startswith("vision."):
                np.testing.assert_array_equal(first[name], last[name])
            assert not name.startswith("adam_m.vision."), "what is frozen has no optimizer state"


def test_replicas_equal_one_process(folder, plain):
    changes = {"parallel_config.data_parallel": 2, "runner_config.batch_size": 1}
    assert_equal(train(folder / "d2", 4, changes), plain["trained"])


def test_shards_equal_one_process(folder, plain):
    changes = {"parallel_config.pipeline_stage": 1, "parallel_config.model_parallel": 2}
    assert_equal(train(folder / "t2", 2, changes), plain["trained"])


def test_checkpoints_have_global_names_and_are_resumed(folder, pipeline, plain):
    saved = folder / "p2" / "output" / "checkpoint"
    names = set()
    for rank in range(2):
        names |= set(load(folder / "p2", rank, 3))
    own = {name for name in names if not name.startswith(("adam_", "scale_sense", "global_step"))}
    assert {"decoder.layers.1.mlp.linear_fc1.weight", "vision.blocks.0.qkv.weight", "output_layer.weight"} <= own
    assert {f"adam_m.{name}" for name in own if "." in name} <= names
    third = folder / "third"
    for rank in range(2):
        # As it was after the third step, when a job would have broken off.
        file = f"tiny_rank_{rank}-1_3.safetensors"
        (third / f"rank_{rank}").mkdir(parents=True)
        shutil.copy(saved / f"rank_{rank}" / file, third / f"rank_{rank}")
        meta = f'{{"last_epoch": 1, "last_step": 3, "last_ckpt_file": "{file}"}}'
        (third / f"rank_{rank}" / "meta.json").write_text(meta)
    resumed = train(folder / "resumed", 2, {}, ["--resume_training", "True", "--load_checkpoint", str(third)])
    for printed, before in zip(resumed, pipeline, strict=True):
        assert printed == before[3:]


def test_float16_scales_the_loss_and_skips_overflows_everywhere(folder):
    scale = {"type": "DynamicLossScaleUpdateCell", "loss_scale_value": 2.0**29, "scale_factor": 64, "scale_window": 2}
    changes = {"model.model_config.compute_dtype": "float16", "runner_wrapper.scale_sense": scale}
    first, second = train(folder / "float16", 2, changes)
    for printed in (first, second):
        overflows = [one.overflow for one in printed]
        assert overflows[0] and not overflows[-1], overflows
        # The factor falls after an overflow.
        assert printed[1].scale == 2.0**23
    assert [(one.loss, one.overflow, one.scale) for one in first] == [
        (one.loss, one.overflow, one.scale) for one in second
    ]
