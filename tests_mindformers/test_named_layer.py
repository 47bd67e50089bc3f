"""Names, frozen parameters and parts of parameters."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from hyperparallel.cells.layer import build_layer
from hyperparallel.cells.tensor_parallel import Shard, TensorParallel, join_parameter
from hyperparallel.errors import ConfigError
from mindformers_patch.named_layer import freeze, named_layer


class Two(nn.Cell):
    """Two projections, the first cut over shards."""

    def __init__(self, place: TensorParallel) -> None:
        super().__init__()
        self.wide = nn.Dense(3, 8 // place.size)
        self.flat = nn.Dense(8 // place.size, 2)


def layer(size: int = 1, shard: int = 0):
    cut = {"wide.weight": Shard(0, (4, 4)), "wide.bias": Shard(0, (4, 4)), "flat.weight": Shard(1, (8,))}
    place = TensorParallel(size, shard, "group")
    return named_layer("decoder.layers.0", Two, strip="wi", parallel=place, sharded=cut, part="llm")


def test_names():
    cell = build_layer(layer(), seed=1)
    assert [parameter.name for parameter in cell.get_parameters()] == [
        "decoder.layers.0.de.weight",
        "decoder.layers.0.de.bias",
        "decoder.layers.0.flat.weight",
        "decoder.layers.0.flat.bias",
    ]


def test_parts_of_a_model_start_as_the_whole():
    whole = {p.name: p.asnumpy() for p in build_layer(layer(), seed=1).get_parameters()}
    parts = [{p.name: p.asnumpy() for p in build_layer(layer(2, t), seed=1).get_parameters()} for t in range(2)]
    for local, shard in layer(2).sharded.items():
        name = layer().parameters[local]
        np.testing.assert_array_equal(join_parameter([part[name] for part in parts], shard), whole[name])
    for part in parts:
        np.testing.assert_array_equal(part["decoder.layers.0.flat.bias"], whole["decoder.layers.0.flat.bias"])


def test_freezing():
    assert freeze([layer()], ["decoder.*"])[0].trainable is False
    some = freeze([layer()], ["*.bias"])[0]
    assert some.trainable
    trained = {p.name for p in build_layer(some, seed=1).get_parameters() if p.requires_grad}
    assert trained == {"decoder.layers.0.de.weight", "decoder.layers.0.flat.weight"}
    assert freeze([layer()], [])[0].trainable
    with pytest.raises(ConfigError, match=r"'visual\.\*' matches no parameter; names are decoder.layers.0.de.weight"):
        freeze([layer()], ["visual.*"])


def test_a_frozen_part_keeps_its_values():
    first, second = (build_layer(one, seed=1) for one in (layer(), freeze([layer()], ["*.bias"])[0]))
    for mine, other in zip(first.get_parameters(), second.get_parameters(), strict=True):
        assert isinstance(mine, ms.Parameter)
        np.testing.assert_array_equal(mine.asnumpy(), other.asnumpy())
