import mindspore as ms
import numpy as np
import pytest
from models_slab import TINY, VISION, Slab, batch, check_gradient

from hyperparallel.models import VisionConfig, mllm
from hyperparallel.models.vit import Merger, PatchEmbed, gelu, patch_positions


def encoder(seed=0):
    return Slab([layer for layer in mllm(TINY) if layer.part == "vision"], first=True, seed=seed)


@pytest.mark.parametrize(
    ("merge", "order"),
    [
        (1, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]),
        (2, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 0)]),
    ],
)
def test_patches_of_one_token_follow_each_other(merge, order):
    positions = patch_positions(VisionConfig(width=16, depth=1, heads=2, ffn=32, merge=merge))
    assert [tuple(position) for position in positions[: len(order)]] == order
    assert len(set(map(tuple, positions))) == 16


def test_patch_embed_projects_the_pixels_at_its_positions():
    config = VisionConfig(width=16, depth=1, heads=2, ffn=32, channels=3)
    cell = PatchEmbed(config)
    pixels = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    got = cell(ms.Tensor(pixels)).asnumpy()
    for index, (row, column) in enumerate(patch_positions(config)):
        patch = pixels[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(2, -1)
        assert np.allclose(got[:, index], patch @ cell.project.weight.asnumpy().T, atol=1e-5)


def test_merger_sees_only_the_patches_of_its_token():
    cell = Merger(VISION, 24)
    x = np.random.default_rng(0).standard_normal((1, 16, 16)).astype(np.float32)
    before = cell(ms.Tensor(x)).asnumpy()
    x[0, 4:8] *= -1
    changed = np.abs(cell(ms.Tensor(x)).asnumpy() - before).max(axis=(0, 2)) > 1e-3
    assert changed.tolist() == [False, True, False, False]


def test_images_do_not_see_each_other():
    cell, (pixels, _, _) = encoder(), batch(5, 1, 1, 0)
    together = cell(pixels).asnumpy()
    assert together.shape == (5, VISION.tokens_per_image, TINY.llm.width)
    for index in range(5):
        assert np.allclose(cell(pixels[index : index + 1]).asnumpy()[0], together[index], atol=1e-5)


def test_positions_matter():
    cell, (pixels, _, _) = encoder(), batch(1, 1, 1, 0)
    turned = ms.Tensor(pixels.asnumpy()[:, :, ::-1].copy())
    assert np.abs(cell(pixels).asnumpy().mean(1) - cell(turned).asnumpy().mean(1)).max() > 1e-3


def test_gelu_is_within_two_hundredths_of_the_exact_one():
    from math import erf

    x = np.linspace(-6, 6, 101)
    exact = [value * 0.5 * (1 + erf(value / 2**0.5)) for value in x]
    assert np.abs(gelu(ms.Tensor(x.astype(np.float32))).asnumpy() - exact).max() < 0.021


def test_gradient_equals_differences():
    cell, (pixels, _, _) = encoder(), batch(2, 1, 1, 0)
    sens = np.random.default_rng(1).standard_normal((2, VISION.tokens_per_image, TINY.llm.width))
    check_gradient(cell, (pixels,), ms.Tensor(sens.astype(np.float32)))
