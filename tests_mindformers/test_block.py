"""The block of the YAML: what is refused, and in which words."""

import pytest

from hyperparallel.algebra.topology import Topology
from hyperparallel.errors import ConfigError
from mindformers_patch.block import Job, read_block, read_job

GOOD = {"schedule": "transpose(vision) >> 1f1b(llm)", "micro_batches": 8}


def test_defaults():
    block = read_block(GOOD)
    assert (block.run, block.recompute, block.wires, block.sources) == ("graph", None, "native", None)


@pytest.mark.parametrize(
    "values, words",
    [
        ({**GOOD, "microbatches": 8}, "unknown key 'microbatches'; did you mean 'micro_batches'?"),
        ({**GOOD, "zzz": 1}, "expected one of schedule, micro_batches, run"),
        ({"schedule": "1f1b(llm)"}, "'micro_batches' is missing; add it (M, micro-batches of a step and replica)"),
        ({**GOOD, "micro_batches": 0}, "hyperparallel.micro_batches = 0: input should be greater"),
        ({**GOOD, "run": "stepwise"}, "hyperparallel.run = 'stepwise': input should be 'graph' or 'three_phase'"),
        ("1f1b(llm)", "expected the keys schedule and micro_batches below it"),
    ],
)
def test_mistakes(values, words):
    with pytest.raises(ConfigError) as error:
        read_block(values)
    assert words in str(error.value)


def test_the_layout_comes_from_parallel_config():
    job = read_job(GOOD, {"pipeline_stage": 2, "data_parallel": 2, "model_parallel": 2}, 8)
    assert job.topology == Topology(2, 2, 2)
    config = {"hyperparallel": GOOD}
    job.keep(config)
    assert Job.of(config) == job


@pytest.mark.parametrize(
    "parallel, workers, words",
    [
        ({"pipeline_stage": 4}, 2, "pipeline_stage 4 x data_parallel 1 x model_parallel 1 = 4 workers, the job has 2"),
        ({"pipeline_stage": 1, "context_parallel": 2}, 1, "context_parallel = 2: hyperparallel.run graph has"),
        ({"pipeline_stage": 1, "expert_parallel": 2}, 1, "expert_parallel = 2: hyperparallel.run graph has"),
    ],
)
def test_layouts_that_do_not_fit(parallel, workers, words):
    with pytest.raises(ConfigError) as error:
        read_job(GOOD, parallel, workers)
    assert words in str(error.value)


def test_a_configuration_that_nobody_prepared():
    with pytest.raises(ConfigError, match="python -m mindformers_patch --config"):
        Job.of({"hyperparallel": GOOD})
