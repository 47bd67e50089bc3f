"""What the entry finds out before MindFormers builds anything."""

import copy

import pytest
from mindformers.tools.register import MindFormerConfig
from mindformers_case import TINY, changed

import mindformers_patch.versions as versions
from hyperparallel.errors import ConfigError, HyperParallelError
from mindformers_patch.prepare import prepare


def tiny(**changes) -> MindFormerConfig:
    """The tiny job for two workers, with values changed by `section__key`."""
    return MindFormerConfig(**changed(TINY, {key.replace("__", "."): value for key, value in changes.items()}))


@pytest.fixture(autouse=True)
def two_workers(monkeypatch):
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    monkeypatch.setattr("mindformers_patch.cpu.stand_in", lambda: None)


def test_a_block_changes_the_trainer_and_nothing_else_does():
    config = tiny()
    assert prepare(config).topology.ranks == 2
    assert config.trainer.type == "RankTrainer"
    assert config.parallel.parallel_mode == "STAND_ALONE"
    without = tiny(hyperparallel=None)
    before = copy.deepcopy(without)
    assert prepare(without) is None
    assert without == before


def test_the_other_route():
    config = tiny(hyperparallel__run="three_phase", context__device_target="Ascend")
    prepare(config)
    assert config.trainer.type == "ThreePhaseTrainer"
    assert config.parallel.parallel_mode == 1


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model__model_config__model_type": "qwen3"}, "no encoder can be found in it; use one of qwen3_mllm"),
        ({"model__model_config__vision": None}, "model_config.vision is missing, so there is no encoder"),
        ({"model__model_config__hidden_dropout": 0.1}, "hidden_dropout is 0.1; hyperparallel.run graph needs 0.0"),
        ({"model__model_config__params_dtype": "bfloat16"}, "set params_dtype: float32"),
        ({"model__model_config__mtp_num_layers": 1}, "mtp_num_layers is 1; hyperparallel.run graph needs 0"),
        ({"model__model_config__model_type": "deepseek_v3_mllm"}, "num_nextn_predict_layers is missing, so 1"),
        ({"runner_config": 3}, "runner_config: is 3; expected a section"),
        ({"parallel_config__pipeline_stage": 4}, "pipeline_stage 4"),
        ({"hyperparallel__schedule": "transpose(audio) >> 1f1b(llm)"}, "audio"),
        ({"hyperparallel__schedule": "transpose(vision >> 1f1b(llm)"}, "^"),
    ],
)
def test_mistakes_are_one_sentence(changes, words):
    with pytest.raises(HyperParallelError) as error:
        prepare(tiny(**changes))
    assert words in str(error.value)


def test_other_versions_are_refused(monkeypatch):
    monkeypatch.setattr(versions, "version", lambda package: {"mindformers": "1.9.0", "mindspore": "2.10.0"}[package])
    with pytest.raises(ConfigError, match="mindspore is 2.10.0; mindformers_patch was built for 2.9.x"):
        versions.check_versions()
