"""Three phases on CPU against MindFormers' own wrapper in one process, and what MindSpore compiles for Ascend."""

import re
import shutil
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindformers_case import PROJECT, alone, run_workers, write
from safetensors.numpy import load_file

import yaml
from hyperparallel.dryrun import run_ranks
from hyperparallel.errors import ConfigError
from mindformers_patch.backbone import put_images
from mindformers_patch.block import read_job
from mindformers_patch.gpt_features import place_images
from mindformers_patch.three_phase_config import check_job
from mindformers_patch.three_phase_encoder import Share, own_rows

YAML = PROJECT / "yaml" / "mindformers"
CPU = YAML / "three_phase_cpu.yaml"
PLAIN = PROJECT / "tests_mindformers" / "plain_job.py"
ONE = {"use_parallel": False, "parallel_config.pipeline_stage": 1, "runner_config.batch_size": 4}
FROZEN = {"model.model_config.freeze": ["vision.*"], "model.model_config.tie_word_embeddings": True}
LLM_FROZEN = {"model.model_config.freeze": ["decoder.*", "embedding.*", "output_layer.*"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("three_phase")


def job(folder: Path, changes: dict, *flags: str):
    """Run in one process, from weights that depend on seed and name only."""
    path = write(folder, {**ONE, **changes}, CPU)
    return alone(folder, [str(PLAIN), str(path), *flags])


def two(folder: Path, changes: dict):
    """Run under `msrun`, two workers that share the images; return what each printed."""
    path = write(folder, {"runner_config.batch_size": 4, **changes}, CPU)
    return run_workers([str(PLAIN), str(path)], 2, folder)


def assert_equal(printed, expected) -> None:
    """The loss monitor prints six digits."""
    assert [one.step for one in printed] == [one.step for one in expected]
    np.testing.assert_allclose([one.loss for one in printed], [one.loss for one in expected], atol=1.5e-6)
    np.testing.assert_allclose([one.norm for one in printed], [one.norm for one in expected], rtol=1e-5)


@pytest.fixture(scope="module")
def plain(folder):
    """Without our block: MindFormers' own wrapper around the whole model."""
    return job(folder / "plain", {"hyperparallel": None})


@pytest.fixture(scope="module")
def shared(folder):
    """In three phases by two workers, 12 images: 6 each; five steps, a checkpoint after the third and the last."""
    return two(folder / "shared", {})


@pytest.mark.slow
def test_three_phases_equal_one_process(folder, plain):
    assert len(plain) == 5
    assert_equal(job(folder / "three", {}), plain)
    assert plain[0].norm > 1, "clipping must have something to do"


@pytest.mark.slow
@pytest.mark.parametrize("name, changes", [("encoder", FROZEN), ("llm", LLM_FROZEN)])
def test_a_frozen_part_equals_one_process(folder, name, changes):
    expected = job(folder / f"plain_{name}", {"hyperparallel": None, **changes})
    assert_equal(job(folder / f"frozen_{name}", changes), expected)


@pytest.mark.slow
def test_two_workers_share_the_images(shared, plain):
    for printed in shared:
        assert_equal(printed, plain)


@pytest.mark.slow
def test_a_loss_scale_changes_nothing(folder, plain):
    for one, before in zip(job(folder / "scaled", {"runner_wrapper.scale_sense": 1024.0}), plain, strict=True):
        assert one.scale == 1024
        np.testing.assert_allclose([one.loss, one.norm], [before.loss, before.norm], rtol=1e-5)


@pytest.mark.slow
def test_checkpoints_have_global_names_and_are_resumed(folder, shared):
    third = folder / "third"
    for rank in range(2):
        # As it was after the third step, when a job would have broken off.
        file = f"tiny_rank_{rank}-1_3.safetensors"
        saved = folder / "shared" / "output" / "checkpoint" / f"rank_{rank}" / file
        names = set(load_file(saved))
        own = {"decoder.layers.1.mlp.linear_fc1.weight", "vision.blocks.0.qkv.weight", "output_layer.weight"}
        assert own | {f"adam_m.{name}" for name in own} | {"global_step"} <= names
        (third / f"rank_{rank}").mkdir(parents=True)
        shutil.copy(saved, third / f"rank_{rank}")
        meta = f'{{"last_epoch": 1, "last_step": 3, "last_ckpt_file": "{file}"}}'
        (third / f"rank_{rank}" / "meta.json").write_text(meta)
    resumed = two(folder / "resumed", {"resume_training": True, "load_checkpoint": str(third)})
    for printed, before in zip(resumed, shared, strict=True):
        assert_equal(printed, before[3:])
        assert [one.lr for one in printed] == [one.lr for one in before[3:]]


def graphs(folder: Path, config: str, workers: int, which: list[int]) -> dict[int, list[str]]:
    """Compile workers through the entry; return the final graphs of each: LLM, encoder, its backward, update."""
    command = [sys.executable, str(PROJECT / "tests_mindformers" / "three_phase_rank.py"), "--config"]
    command += [str(YAML / config), "--output_dir", str(folder / "output")]
    found = {}
    for run in run_ranks(command, workers, which, save_graphs=folder / "ir", cwd=folder, timeout=500):
        assert run.passed and "step compiled" in run.output, run.output[-3000:]
        files = sorted((folder / "ir" / f"rank_{run.rank}").glob("*_validate_*.ir"))
        found[run.rank] = [file.read_text(errors="replace") for file in files]
        assert len(found[run.rank]) == 4
    return found


def calls(graph: str, operator: str) -> list[str]:
    """Return the lines that call an operator."""
    return re.findall(rf"^ *%\d+\([^)]*\) = (?:PrimFunc_)?{operator}\(.*$", graph, re.MULTILINE)


def members(line: str) -> tuple[int, ...]:
    """Return the workers of a communication operator's group."""
    named = re.search(r'group: "hyperparallel-([\d-]+)"', line)
    if named:  # a dry run knows the members of groups by their names only
        return tuple(int(one) for one in named[1].split("-"))
    return tuple(int(one) for one in re.search(r"group_rank_ids: \(([\d, ]*)\)", line)[1].split(",") if one.strip())


@pytest.mark.slow
def test_two_ranks_compile(tmp_path):
    for rank, (llm, encode, back, update) in graphs(tmp_path, "three_phase_dryrun_2.yaml", 2, [0, 1]).items():
        # Two micro-batches there and back, to the other stage only.
        assert len(calls(llm, "Send")) == len(calls(llm, "Receive")) == 2
        assert [members(line) for line in calls(encode, "AllGather")] == [(0, 1)]
        assert [members(line) for line in calls(back, "ReduceScatter")] == [(0, 1)]
        assert {members(line) for line in calls(back, "AllReduce")} == {(0, 1)}
        assert len(calls(llm, "Gather")) == (rank == 0), "features are merged in the first stage, once in the IR"
        assert not calls(update, "AllReduce")


@pytest.mark.slow
def test_what_gradients_are_multiplied_by(tmp_path):
    """Read the terms of the derivation in docs/three_phase.md back from the graphs of P = 2, D = 2, T = 2."""
    for rank, (llm, encode, back, update) in graphs(tmp_path, "three_phase_dryrun_8.yaml", 8, [0, 2, 5, 7]).items():
        stage, replica = rank // 4, rank % 4 // 2
        first = 4 * stage
        everyone_here = tuple(range(first, first + 4))
        replicas = (first + rank % 2, first + rank % 2 + 2)
        sums = calls(llm, "AllReduce")
        # Nothing in the graph takes a mean over workers.
        assert all('op: "sum"' in line or 'op: "max"' in line for line in sums)
        mirrors = [line for line in sums if "grad_mirror" in line]
        # A weight that T workers share as one is summed over them too: their gradients are parts.
        assert {members(line) for line in mirrors} == {everyone_here, replicas}
        assert not [line for line in calls(llm, "(?:Mul|RealDiv)") if "grad_mirror" in line]
        # Each part of a gradient counts once in the norm: divided by its copies, summed in and between stages.
        copies = [line for line in calls(llm, "RealDiv") if "PARALLEL_GLOBALNORM_DIV" in line]
        assert {int(re.search(r"value=(\d+)", line)[1]) for line in copies} == {2, 4}
        assert [members(line) for line in sums if "GLOBALNORM_IN_STAGES" in line] == [everyone_here]
        assert [members(line) for line in sums if "GLOBALNORM_BETWEEN" in line] == [(rank % 4, rank % 4 + 4)]
        virtual = [
            line for line in calls(llm, "RealDiv") if "GLOBALNORM" not in line and re.match(r" *%\d+\(dx\)", line)
        ]
        scattered = [members(line) for line in calls(llm, "ReduceScatter")]
        if stage == 0:
            assert not virtual
            # Back from the gathered inputs: one a micro-batch, over the replicas, for the features only.
            assert scattered == [replicas, replicas]
        else:
            # The loss is on all D T workers of the last stage; each starts both micro-batches with its share of one.
            assert len(virtual) == 1 and "value=4" in virtual[0]
            # Back from the losses that are gathered over the replicas, once in the IR.
            assert scattered == [replicas]
        together = tuple(worker for worker in range(8) if worker % 4 // 2 == replica)
        assert [members(line) for line in calls(encode, "AllGather")] == [together]
        scatter = calls(back, "ReduceScatter")
        assert [members(line) for line in scatter] == [together] and 'op: "sum"' in scatter[0]
        for line in calls(back, "AllReduce"):
            assert members(line) == tuple(range(8)) and 'op: "sum"' in line
        assert not calls(update, "AllReduce")


def test_features_are_placed_as_in_the_plain_model():
    rng = np.random.default_rng(0)
    ids = ms.Tensor(np.array([[5, 3, 3, 1, 0, 0], [3, 3, 3, 3, 2, 1]], np.int32))
    text = ms.Tensor(rng.normal(size=(6, 2, 8)).astype(np.float32))
    features = ms.Tensor(rng.normal(size=(4, 2, 8)).astype(np.float32))
    rows, keep = (one.asnumpy() for one in place_images(ids, 3))
    table = np.concatenate([np.zeros((2, 1, 8), np.float32), features.asnumpy().reshape(2, 4, 8)], 1)
    merged = text.asnumpy().transpose(1, 0, 2) * keep + np.stack([table[b][rows[b]] for b in range(2)])
    np.testing.assert_array_equal(merged.transpose(1, 0, 2), put_images(text, features, ids, 3).asnumpy())


def test_shares_cover_all_images_once():
    images = ms.Tensor(np.arange(1, 8, dtype=np.float32))
    parts = [own_rows(images, Share(size=3, index=index)).asnumpy() for index in range(3)]
    assert {len(part) for part in parts} == {3}
    np.testing.assert_array_equal(np.concatenate(parts), [1, 2, 3, 4, 5, 6, 7, 0, 0])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hyperparallel.schedule": "1f1b(vision+llm)"}, "write 'transpose(vision) >> 1f1b(llm)', or set run: graph"),
        ({"hyperparallel.schedule": "transpose(vision) >> gpipe(llm)"}, "has no order of its own"),
        ({"hyperparallel.micro_batches": 1}, "set micro_batches: 2 or more"),
        ({"hyperparallel.recompute": [0]}, "hyperparallel.recompute is for run graph"),
        ({"runner_config.gradient_accumulation_steps": 2}, "raise micro_batches"),
        ({"parallel.enable_parallel_optimizer": True}, "set enable_parallel_optimizer: False"),
        ({"parallel.gradients_mean": True}, "set gradients_mean: False"),
        ({"parallel.pipeline_config": {"pipeline_scheduler": "zero_bubble_v"}}, "pipeline_scheduler is zero_bubble_v"),
        ({"parallel_config.pipeline_stage": 4}, "the job has 2"),
        ({"context.device_target": "CPU"}, "micro_batches is 2 on a CPU"),
    ],
)
def test_mistakes_are_one_sentence(changes, words):
    values = yaml.safe_load((YAML / "three_phase_dryrun_2.yaml").read_text())
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = values
        for name in sections:
            place = place[name]
        place[last] = value
    with pytest.raises(ConfigError) as error:
        check_job(values, read_job(values["hyperparallel"], values["parallel_config"], 2))
    assert words in str(error.value)
