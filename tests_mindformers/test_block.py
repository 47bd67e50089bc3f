"""The block of the YAML: what is refused, and in which words."""

import pytest

from hyperparallel.algebra import ModelSpec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cost import PartCost, costs_from_parts
from hyperparallel.errors import ConfigError, HyperParallelError
from hyperparallel.planner import Settings, plan_line
from hyperparallel.planner.plan_file import to_plan_file
from mindformers_patch.__main__ import apply
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
        ({**GOOD, "micro_batches": True}, "hyperparallel.micro_batches = True: input should be a valid integer"),
        (
            {**GOOD, "micro_batches": "8"},
            "hyperparallel.micro_batches = '8': input should be a valid integer; write it",
        ),
        ({**GOOD, "plan": ""}, "hyperparallel.plan = '': an empty path"),
        ({**GOOD, "run": "stepwise"}, "hyperparallel.run = 'stepwise': input should be 'graph' or 'three_phase'"),
        ("1f1b(llm)", "expected the keys schedule and micro_batches below it"),
    ],
)
def test_mistakes(values, words):
    with pytest.raises(ConfigError) as error:
        read_block(values)
    assert words in str(error.value)


@pytest.mark.parametrize("option", ["load_checkpoint=", "hyperparallel.plan=  "])
def test_an_option_without_value_is_refused(option):
    with pytest.raises(ConfigError, match="has no value after the =; write .*=null if none is meant"):
        apply({}, [option])


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


def test_what_a_planner_decided_is_read_from_its_file(tmp_path):
    line = "transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"
    model = ModelSpec.of({"vision": 3, "llm": 4})
    parts = {"vision": PartCost(9, 9), "llm": PartCost(4, 8)}
    planned = plan_line(line, model, 2, 4, lambda plan: costs_from_parts(plan, parts), Settings(engine="list"))
    file = tmp_path / "plan.json"
    file.write_text(to_plan_file(planned))
    block = {"schedule": line, "micro_batches": 4}
    assert Job(read_block({**block, "plan": str(file)}), Topology(2)).plan(model).programs == planned.plan.programs
    with pytest.raises(HyperParallelError, match="decided by the planner"):
        Job(read_block(block), Topology(2)).plan(model)
    with pytest.raises(HyperParallelError, match="plan again"):
        Job(read_block({**block, "plan": str(file)}), Topology(4)).plan(model)
