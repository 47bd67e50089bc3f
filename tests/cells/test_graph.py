"""The graph runner equals one process; run on CPU from the same Cell that is compiled for Ascend.

Messages are sums over the pair here (`PairSum`), which block like a send that waits for its receive: the runs
also show that no order of messages makes ranks wait for each other.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from cells_case import Case, kind_of, layers_of, reference, relative_difference
from graph_case import GRAPH_CASES, columns_of, static_batch

from hyperparallel import derive, model_spec, parse
from hyperparallel.algebra.skeletons.base import registry
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.errors import ConfigError, DataError

TOLERANCE = 1e-5
# float16 keeps 11 bits; the plain reference rounds sample by sample, the runner micro-batch by micro-batch.
ROUNDING = {"float32": (TOLERANCE, TOLERANCE), "float16": (2e-3, 5e-2)}  # of losses and norms, of parameters

every_case = pytest.mark.parametrize("graph", GRAPH_CASES, ids=lambda graph: graph.name)


@pytest.fixture
def folder(graph_jobs) -> Path:
    """Folder of what the cases wrote."""
    return graph_jobs


def seen(folder: Path, graph) -> list[tuple[dict, dict[str, np.ndarray]]]:
    """Load what each rank of a case wrote."""
    return [
        (
            json.loads((folder / f"{graph.name}.{rank}.json").read_text()),
            dict(np.load(folder / f"{graph.name}.{rank}.npz")),
        )
        for rank in range(graph.case.workers)
    ]


def expected(graph):
    return reference(*kind_of(graph.case)._replace(dtype=graph.dtype))


@pytest.mark.slow
@every_case
def test_losses_and_norms_equal_one_process(folder, graph):
    ranks = seen(folder, graph)
    for facts, _ in ranks:
        assert facts["results"] == ranks[0][0]["results"], "ranks disagree"
        for key, values in (("loss", expected(graph).losses), ("grad_norm", expected(graph).norms)):
            got = [result[key] for result in facts["results"]]
            np.testing.assert_allclose(got, values, rtol=ROUNDING[graph.dtype][0])


@pytest.mark.slow
def test_float16_on_two_ranks_equals_float16_in_one_process(folder):
    alone, split = (seen(folder, graph) for graph in GRAPH_CASES if graph.dtype == "float16" and graph.case.scale == 1)
    for facts, arrays in split:
        for got, wanted in zip(facts["results"], alone[0][0]["results"], strict=True):
            np.testing.assert_allclose(got["loss"], wanted["loss"], rtol=TOLERANCE)
            np.testing.assert_allclose(got["grad_norm"], wanted["grad_norm"], rtol=TOLERANCE)
        for name, value in arrays.items():
            assert relative_difference(value, alone[0][1][name]) < TOLERANCE, name


@pytest.mark.slow
def test_evaluating_between_steps_gives_the_loss_of_the_next_one(folder):
    for graph in (graph for graph in GRAPH_CASES if graph.evaluates):
        for facts, _ in seen(folder, graph):
            (result,), wanted = facts["evaluated"], facts["results"][2]
            assert result["grad_norm"] == 0.0
            np.testing.assert_allclose(result["loss"], wanted["loss"], rtol=TOLERANCE)
            assert (result["weight"], result["metrics"]) == (wanted["weight"], wanted["metrics"])


@pytest.mark.slow
@every_case
def test_copies_stay_equal_to_the_bit(folder, graph):
    """Tied ends, copies of a transposed encoder and replicas."""
    copies: dict[str, np.ndarray] = {}
    for _, arrays in seen(folder, graph):
        for name, value in arrays.items():
            name = name.replace("llm.head.weight", "llm.embed.weight") if graph.case.tied else name
            np.testing.assert_array_equal(value, copies.setdefault(name, value), err_msg=name)


@pytest.mark.slow
def test_a_frozen_encoder_has_no_optimizer_state(folder):
    graph = next(graph for graph in GRAPH_CASES if not graph.case.vision)
    for facts, _ in seen(folder, graph):
        assert facts["moments"] and not any("vision" in name for name in facts["moments"])


@pytest.mark.slow
@every_case
def test_parameters_equal_one_process(folder, graph):
    found = set()
    for _, arrays in seen(folder, graph):
        for name, value in arrays.items():
            if name.startswith("initial:"):
                np.testing.assert_array_equal(value, expected(graph).initial[name.removeprefix("initial:")])
                continue
            found.add(name)
            assert relative_difference(value, expected(graph).final[name]) < ROUNDING[graph.dtype][1], name
    assert found == set(expected(graph).final)


@pytest.mark.parametrize("ranks", (2, 4))
def test_every_skeleton_is_among_the_cases(ranks):
    lines = [graph.case.schedule for graph in GRAPH_CASES if graph.case.ranks == ranks]
    assert {region.skeleton for line in lines for region in parse(line).regions} == set(registry())


def make(**options):
    case = Case("1f1b(vision+llm)", 1)
    layers = layers_of(case)
    return GraphRunner(derive(case.schedule, model_spec(layers), 1, 4), layers, columns_of(case), **options)


def test_wrong_batches_are_refused_with_the_place():
    runner, batch = make(), static_batch(0, Case("", 1), 0)
    for wrong, said in (
        (batch[:2], "the batch has 2 micro-batches; the plan has 4"),
        ([{}, *batch[1:]], "micro-batch 0 has no column 'pixel_values'"),
        ([*batch[:3], {**batch[3], "labels": batch[3]["labels"][:1]}], r"micro-batch 3: column 'labels' has the shape"),
    ):
        with pytest.raises(DataError, match=said):
            runner.step(wrong)


def test_a_job_of_another_size_is_refused():
    with pytest.raises(ConfigError, match="= 2 workers, the job has 1"):
        make(topology=Topology(1, 2))


def test_the_source_is_kept_where_one_asks_for_it(tmp_path):
    make(sources=tmp_path)
    (path,) = tmp_path.glob("step_*.py")
    assert "# 0B3\n" in path.read_text()
