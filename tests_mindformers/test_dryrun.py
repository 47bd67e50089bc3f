"""Jobs of MindFormers compiled for Ascend without Ascend: through the YAML, the entry and MindFormers' Trainer."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from mindformers_case import PROJECT
from texts import write_texts

from hyperparallel.algebra import ModelSpec, derive, validate
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.dryrun import check_ranks, comm_only, final_ir, read_order, run_ranks
from hyperparallel.dryrun.proof import compare, read_step
from hyperparallel.errors import ConfigError
from mindformers_patch import dryrun
from mindformers_patch.dryrun import How, compile_job
from mindformers_patch.experts import check_experts

pytestmark = pytest.mark.slow

FOLDER = PROJECT / "yaml" / "mindformers"
LINE = "transpose(vision) >> 1f1b(llm)"


def programs(llm: int, frozen: tuple[str, ...] = ()) -> tuple:
    """Return the plan's programs of both pipeline ranks, with two micro-batches."""
    model = ModelSpec.of({"vision": 4, "llm": llm}, frozen)
    return validate(derive(LINE, model, ranks=2, micro_batches=2)).programs


@pytest.fixture(scope="module")
def pair():
    return compile_job(FOLDER / "tiny_dryrun_2.yaml")


@pytest.fixture(scope="module")
def frozen():
    return compile_job(FOLDER / "tiny_dryrun_2.yaml", ['model.model_config.freeze=["vision.*"]'])


@pytest.fixture(scope="module")
def eight():
    return compile_job(FOLDER / "tiny_dryrun_8.yaml", how=How(which=(0, 2, 5, 7)))


@pytest.fixture(scope="module")
def experts():
    return compile_job(FOLDER / "deepseek_v3_tiny_dryrun.yaml")


def has_passed(result) -> None:
    assert [(one.worker, one.error, one.problems) for one in result.workers if one.error or one.problems] == []
    assert not result.together
    assert result.passed


@pytest.mark.parametrize("name, llm, parts", [("pair", 5, ()), ("frozen", 5, ("vision",)), ("experts", 6, ())])
def test_each_worker_of_two_runs_the_plans_program(request, name, llm, parts):
    result = request.getfixturevalue(name)
    has_passed(result)
    assert result.together == []  # played against each other, and nothing was found
    wanted = programs(llm, parts)
    for one, own, other in zip(result.workers, wanted, reversed(wanted), strict=True):
        step = read_step(one.events)
        assert list(step.actions) == list(own)
        assert compare(step, other)  # the comparison can fail
        assert not any(step.twice.values())


def test_a_frozen_encoder_has_no_backward(pair, frozen):
    for whole, part in zip(pair.workers, frozen.workers, strict=True):
        assert part.operators < whole.operators
        assert part.messages < whole.messages
        assert not any(a.kind == "B" and a.stage < 2 for a in read_step(part.events).actions)


def test_workers_of_eight_run_the_plans_program(eight):
    has_passed(eight)
    assert eight.together is None  # that takes all workers
    wanted = programs(5)
    for one in eight.workers:
        assert list(read_step(one.events).actions) == list(wanted[one.worker // 4])
    first, replica, last, last_replica = ([_kind(e) for e in comm_only(one.events)] for one in eight.workers)
    assert first == replica
    assert last == last_replica
    assert _messages(first, "Send") == _messages(last, "Receive")
    assert _messages(first, "Receive") == _messages(last, "Send")


def test_ranks_that_do_not_fit_together_are_found(pair, experts):
    """The same check over ranks of two different jobs."""
    assert check_ranks([pair.workers[0].events, experts.workers[1].events])


def test_experts_hand_on_the_auxiliary_loss(pair, experts):
    for dense, one in zip(pair.workers, experts.workers, strict=True):
        assert one.messages > dense.messages
        assert any(event.op == "GroupedMatmul" for event in one.events)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Rank 0 of a job without our block, by our entry and by MindFormers alone: its final graphs."""
    folder = tmp_path_factory.mktemp("stock")
    write_texts(folder / "texts.mindrecord", count=16, length=32, words=16)
    path, graphs = str(FOLDER / "stock_qwen3_tiny.yaml"), {}
    ways = {
        "entry": ["-m", "mindformers_patch.dryrun_rank", "0", "--config", path, "--output_dir", "output"],
        "alone": [str(Path(__file__).parent / "stock_rank.py"), path, "output"],
    }

    def start(way: str):
        return run_ranks([sys.executable, *ways[way]], 2, [0], save_graphs=folder / way, cwd=folder)[0]

    with ThreadPoolExecutor(len(ways)) as pool:
        for way, run in zip(ways, pool.map(start, ways), strict=True):
            assert run.passed, run.output[-3000:]
            graphs[way] = read_order(final_ir(folder / way / "rank_0"))
    return graphs


def test_a_job_without_the_block_has_the_same_graph_with_the_plugin(stock):
    entry, alone = ([_kind(event) for event in stock[way]] for way in ("entry", "alone"))
    assert len(entry) > 500
    assert entry == alone
    assert {"Send", "Receive"} <= {op for op, *_ in entry}  # MindFormers' own pipeline


def test_a_job_without_the_block_has_no_plan():
    with pytest.raises(ConfigError, match="has no block hyperparallel:, so there is no plan"):
        compile_job(FOLDER / "stock_qwen3_tiny.yaml")


@pytest.mark.parametrize(
    "changes, size, words",
    [
        ({"moe_router_enable_expert_bias": True}, 1, "moe_router_enable_expert_bias is True"),
        ({"moe_router_load_balancing_type": "gbs_aux_loss"}, 1, "set it to seq_aux_loss"),
        ({}, 2, "model_parallel is 2"),
        ({"num_moe_experts": None}, 2, "model_parallel is 2"),
    ],
)
def test_experts_that_a_rank_cannot_run_are_refused(changes, size, words):
    usual = {"num_moe_experts": 8, "moe_router_enable_expert_bias": False, "multi_latent_attention": True}
    config = SimpleNamespace(**{**usual, "moe_router_load_balancing_type": "seq_aux_loss", **changes})
    with pytest.raises(ConfigError, match=words):
        check_experts(config, TensorParallel(size))


def test_the_command_says_what_is_wrong(capsys):
    assert dryrun.main(["--config", "none.yaml"]) == 2
    assert "none.yaml: no such file" in capsys.readouterr().err
    assert dryrun.main(["--config", str(FOLDER / "tiny_dryrun_2.yaml"), "--ranks", "0,2"]) == 2
    assert "--ranks names worker 2; the job has the workers 0 to 1" in capsys.readouterr().err


def _kind(event) -> tuple:
    return event.op, event.shape, event.dtype


def _messages(kinds: list, op: str) -> list:
    return [kind[1:] for kind in kinds if kind[0] == op]
