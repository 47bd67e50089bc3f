import mindspore as ms
import numpy as np
import pytest

from hyperparallel.models.attention import attend, attend_causal, rotary_tables, rotate


def tensor(array):
    return ms.Tensor(np.asarray(array, np.float32))


@pytest.mark.parametrize("axes", [1, 2])
def test_scores_depend_on_the_distance_only(axes):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 1, 8))
    here, there = rng.integers(0, 9, (2, 1, axes))

    def score(shift):
        turned_q = rotate(tensor(q), *rotary_tables(here + shift, 8, 100.0)).asnumpy()
        turned_k = rotate(tensor(k), *rotary_tables(there + shift, 8, 100.0)).asnumpy()
        return (turned_q * turned_k).sum()

    shifts = [np.zeros(axes, int), np.full(axes, 5), np.arange(axes) * 3]
    assert np.allclose([score(shift) for shift in shifts], score(shifts[0]), atol=1e-5)


def test_rotation_is_a_complex_product_over_the_root_of_the_root_of_the_head():
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 6))
    angle = np.arange(5)[:, None] * 10000.0 ** -(np.arange(3) / 3)
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angle) * 6**-0.25
    got = rotate(tensor(x), *rotary_tables(np.arange(5)[:, None], 6, 10000.0)).asnumpy()
    assert np.allclose(got, np.concatenate([turned.real, turned.imag], axis=-1), atol=1e-5)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_causal_attention_equals_loops(groups):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 5, 3))
    k, v = rng.standard_normal((2, 2, groups, 5, 3))
    expected = np.zeros_like(q)
    for b, a, s in np.ndindex(2, 4, 5):
        group = a // (4 // groups)
        share = softmax(k[b, group, : s + 1] @ q[b, a, s])
        expected[b, a, s] = share @ v[b, group, : s + 1]
    mask = np.triu(np.full((5, 5), -1e9), 1)
    got = attend_causal(*(tensor(x) for x in (q, k, v, mask))).asnumpy()
    assert np.allclose(got, expected, atol=1e-5)


def test_full_attention_equals_numpy():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 5, 3))
    expected = softmax(q @ k.swapaxes(-1, -2)) @ v
    assert np.allclose(attend(tensor(q), tensor(k), tensor(v)).asnumpy(), expected, atol=1e-5)
