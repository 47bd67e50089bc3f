"""Parts of a model on T shards: what they start with and compute makes up the whole. How they train: tests/cells."""

import mindspore as ms
import numpy as np
import pytest
from models_slab import LLM, TINY, VISION

from hyperparallel.cells.layer import build_layer
from hyperparallel.cells.tensor_parallel import Shard, TensorParallel, join_parameter
from hyperparallel.errors import ConfigError
from hyperparallel.models import mllm
from hyperparallel.models.shards import column_dense, row_dense
from hyperparallel.models.weights import dense

T = 2
SEED = 5
SHARDS = [TensorParallel(T, shard, "g") for shard in range(T)]


def values(layer):
    return {parameter.name: parameter.asnumpy() for parameter in build_layer(layer, SEED).get_parameters()}


def drawn(build):
    np.random.seed(SEED)
    cell = build()
    return {name: parameter.asnumpy() for name, parameter in cell.parameters_and_names()}


def test_columns_are_drawn_whole_and_cut():
    shard = Shard(0, (6, 2, 2))
    whole = drawn(lambda: dense(3, 10, True))
    parts = [drawn(lambda p=p: column_dense(3, shard, True, p)) for p in SHARDS]
    assert drawn(lambda: column_dense(3, shard, True, TensorParallel())).keys() == whole.keys() == parts[0].keys()
    np.testing.assert_array_equal(join_parameter([part["weight"] for part in parts], shard), whole["weight"])
    assert [part["bias"].shape for part in parts] == [(5,), (5,)]


def test_rows_are_drawn_whole_and_cut_and_have_a_whole_bias():
    shard = Shard(1, (6,))
    whole = drawn(lambda: dense(6, 4, True, 0.5))
    parts = [drawn(lambda p=p: row_dense(4, shard, True, 0.5, p)) for p in SHARDS]
    assert drawn(lambda: row_dense(4, shard, True, 0.5, TensorParallel())).keys() == whole.keys() == parts[0].keys()
    np.testing.assert_array_equal(join_parameter([part["weight"] for part in parts], shard), whole["weight"])
    assert [part["bias"].shape for part in parts] == [(4,), (4,)]


def test_every_parameter_is_a_declared_part_or_whole():
    assert not any(layer.sharded for layer in mllm(TINY))
    for layer, *parts in zip(mllm(TINY), *(mllm(TINY, place) for place in SHARDS), strict=True):
        whole, cut = values(layer), [values(part) for part in parts]
        assert parts[0].sharded == parts[1].sharded and bool(parts[0].sharded) is (".blocks." in layer.name)
        for name, value in whole.items():
            shard = parts[0].sharded.get(name.removeprefix(f"{layer.name}."))
            joined = join_parameter([values[name] for values in cut], shard) if shard else cut[1][name]
            np.testing.assert_array_equal(joined, value, err_msg=name)
            assert shard or np.array_equal(cut[0][name], value)
        assert all(values.keys() == whole.keys() for values in cut)


@pytest.mark.parametrize(("name", "shape"), [("vision.blocks.0", (3, 16, 16)), ("llm.blocks.0", (2, 9, 24))])
def test_parts_of_attention_add_up(name, shape):
    """Without the sum, each shard has a share of the result, and the whole bias."""
    rng = np.random.default_rng(0)
    x = ms.Tensor(rng.standard_normal(shape).astype(np.float32))
    cells = [build_layer(find(name, place), SEED) for place in (TensorParallel(), *SHARDS)]
    biases = np.zeros(shape[-1])
    for cell in cells[1:]:
        cell.out.leave.reduce = lambda x: x
    if "vision" in name:
        biases = rng.standard_normal(shape[-1]).astype(np.float32)
        for cell in cells:
            cell.out.bias.set_data(ms.Tensor(biases))
    whole, *parts = (cell.attention(x).asnumpy() for cell in cells)
    np.testing.assert_allclose(sum(parts) - (T - 1) * biases, whole, atol=1e-5)
    assert np.abs(parts[0] - parts[1]).max() > 1e-2


def find(name, place):
    return next(layer for layer in mllm(TINY, place) if layer.name == name)


@pytest.mark.parametrize(
    ("part", "values", "size", "words"),
    [
        ("vision", {}, 4, "vision.heads 2 is not a multiple of tensor_parallel 4; expected equal parts, e.g."),
        ("vision", {"ffn": 33}, 2, "vision.ffn 33 is not a multiple of tensor_parallel 2"),
        ("llm", {"heads": 3, "kv_heads": 3}, 2, "llm.heads 3 is not a multiple of tensor_parallel 2"),
        (
            "llm",
            {"kv_heads": 1},
            2,
            "llm.kv_heads 1 is not a multiple of tensor_parallel 2; expected equal parts",
        ),
        ("llm", {"ffn": 31}, 2, "llm.ffn 31 is not a multiple of tensor_parallel 2"),
    ],
)
def test_sizes_that_t_does_not_divide_are_refused(part, values, size, words):
    config = {"vision": VISION, "llm": LLM}[part]
    changed = type(config)(**{**config.model_dump(), **values})
    with pytest.raises(ConfigError) as error:
        mllm(TINY.model_copy(update={part: changed}), TensorParallel(size))
    assert words in str(error.value)


def test_each_shard_has_half_the_work_of_a_block():
    sizes = {"images": 3, "samples": 2, "tokens": 18}
    for whole, part in zip(mllm(TINY), mllm(TINY, TensorParallel(T)), strict=True):
        assert part.work(sizes) * (T if part.sharded else 1) == whole.work(sizes)
