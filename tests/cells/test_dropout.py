"""Dropout: the mask is that of the formula, and depends on key, name and place only."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from hyperparallel import Layer
from hyperparallel.cells.dropout import RANDOM, Dropout, random_from, random_key, with_random
from hyperparallel.cells.layer import build_layer

WIDTH = 24


def dropped(x_RSD, key, rate=0.3, name="block.mlp", train=True):
    cell = named(rate, name).set_train(train)
    return cell(Tensor(x_RSD), Tensor(key)).asnumpy()


def named(rate, name):
    cell = Dropout(rate, WIDTH)
    cell.call_it(name)
    return cell


def ones(rows, positions):
    return np.ones((rows, positions, WIDTH), np.float32)


def mixed(x):
    """Spread bits, in unsigned whole numbers of 64 bits instead of signed ones of 32."""
    x = np.asarray(x).astype(np.uint64) & np.uint64(0xFFFFFFFF)
    x = (x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D) & np.uint64(0xFFFFFFFF)
    x = (x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


@pytest.mark.parametrize(("rows", "positions", "first"), [(3, 7, 0), (1, 32, 5)])
def test_the_mask_is_that_of_the_formula(rows, positions, first):
    key = random_from(random_key(4, 2, 1), first)
    salt = named(0.3, "block.mlp").salt
    row = np.arange(1, rows + 1)[:, None, None] + first
    place = mixed(row * 0x3504F333 + np.arange(1, positions + 1)[None, :, None])
    feature = np.arange(WIDTH).astype(np.uint64) * np.uint64(0x1B873593)
    bits = mixed((place ^ mixed(int(key[0]) + salt)) + feature) & np.uint64(0xFFFFFF)
    expected = np.where(bits >= 0.3 * 2**24, 1 / 0.7, 0.0)
    np.testing.assert_allclose(dropped(ones(rows, positions), key), expected, rtol=1e-6)


def test_the_share_that_is_dropped_is_the_rate():
    for rate in (0.1, 0.5):
        kept = dropped(ones(64, 64), random_key(0, 0, 0), rate) > 0
        assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / kept.size)
        for axis in range(3):  # no row, position or feature is favoured
            others = tuple(one for one in range(3) if one != axis)
            means, count = kept.mean(others), kept.size // kept.shape[axis]
            assert np.abs(means - (1 - rate)).max() < 5 * np.sqrt(rate * (1 - rate) / count)


def test_masks_of_other_seeds_steps_micro_batches_and_layers_are_unrelated():
    x = ones(16, 16)
    masks = [dropped(x, random_key(*key), 0.5) > 0 for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    masks.append(dropped(x, random_key(0, 0, 0), 0.5, name="block.attention") > 0)
    for one in range(len(masks)):
        for other in range(one):
            assert abs((masks[one] == masks[other]).mean() - 0.5) < 0.05


def test_padding_and_pieces_change_no_element():
    key = random_key(1, 2, 3)
    whole = dropped(ones(6, 16), key)
    np.testing.assert_array_equal(dropped(ones(6, 9), key), whole[:, :9])
    np.testing.assert_array_equal(dropped(ones(2, 16), random_from(key, 3)), whole[3:5])


def test_nothing_is_dropped_outside_of_training():
    x = np.random.default_rng(0).normal(size=(2, 3, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(dropped(x, random_key(0, 0, 0), train=False), x)


def test_the_gradient_has_the_same_mask():
    cell = named(0.4, "a").set_train(True)
    x, key = Tensor(ones(2, 5)), Tensor(random_key(0, 0, 0))
    gradient = ops.GradOperation(get_all=True)(cell)(x, key)[0]
    np.testing.assert_array_equal(gradient.asnumpy(), cell(x, key).asnumpy())


def test_float16_stays_float16():
    cell = named(0.4, "a").set_train(True)
    assert cell(Tensor(ones(1, 2), ms.float16), Tensor(random_key(0, 0, 0))).dtype == ms.float16


def test_every_micro_batch_gets_the_key_of_its_number():
    batch = with_random([{"x": 1}, {"x": 2}], seed=5, step=6, numbers=[3, 1])
    assert [one["x"] for one in batch] == [1, 2]
    np.testing.assert_array_equal([one[RANDOM] for one in batch], [random_key(5, 6, 3), random_key(5, 6, 1)])


def test_a_layer_names_its_dropout():
    class Block(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first, self.second = Dropout(0.1, WIDTH), Dropout(0.1, WIDTH)

    cells = [build_layer(Layer(f"net.{index}", "net", Block), seed=0) for index in range(2)]
    salts = [part.salt for cell in cells for part in (cell.first, cell.second)]
    assert len(set(salts)) == 4 and salts[0] == named(0.1, "net.0.first").salt
