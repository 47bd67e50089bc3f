import mindspore as ms
import numpy as np
import pytest
from models_slab import LLM, SENS, TINY, Slab, backward, batch, check_gradient

from hyperparallel.models import mllm
from hyperparallel.models.decoder import DecoderBlock, Head, MultimodalEmbed, TextEmbed

IMAGE = TINY.image_token


def ints(rows):
    return ms.Tensor(np.array(rows, np.int32))


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ([[IMAGE, IMAGE, 5], [6, IMAGE, IMAGE]], [0, 1, None, None, 2, 3]),
        ([[5, 6, IMAGE], [IMAGE, 7, 0]], [None, None, 0, 1, None, None]),
        ([[5, 6, 7], [8, 9, 0]], [None] * 6),
    ],
    ids=["in order over rows", "text first", "text only with a dummy image"],
)
def test_features_take_the_placeholders_in_order(ids, rows):
    cell = MultimodalEmbed(LLM, IMAGE)
    features = np.random.default_rng(0).standard_normal((2, 4, LLM.width)).astype(np.float32)
    inputs = (ms.Tensor(features), ints(ids))
    out = cell(*inputs).asnumpy().reshape(6, -1)
    table, flat = cell.weight.asnumpy(), features.reshape(8, -1)
    for got, token, row in zip(out, np.ravel(ids), rows, strict=True):
        assert np.array_equal(got, table[token] if row is None else flat[row])

    sens = np.random.default_rng(1).standard_normal((2, 3, LLM.width)).astype(np.float32)
    (of_features, _), (of_table,) = backward(cell, inputs, ms.Tensor(sens))
    expected_features, expected_table = np.zeros_like(flat), np.zeros_like(table)
    for gradient, token, row in zip(sens.reshape(6, -1), np.ravel(ids), rows, strict=True):
        if row is None:
            expected_table[token] += gradient
        else:
            expected_features[row] += gradient
    assert np.array_equal(of_features.reshape(8, -1), expected_features)
    assert np.allclose(of_table, expected_table, atol=1e-6)


def test_text_embed_looks_up():
    cell = TextEmbed(LLM)
    assert np.array_equal(cell(ints([[3, 0], [22, 3]])).asnumpy(), cell.weight.asnumpy()[[[3, 0], [22, 3]]])


def test_a_token_sees_neither_later_tokens_nor_other_rows():
    cell = DecoderBlock(LLM)
    x = np.random.default_rng(0).standard_normal((2, 6, LLM.width)).astype(np.float32)
    before = cell(ms.Tensor(x)).asnumpy()
    x[0, 3] *= -1
    changed = np.abs(cell(ms.Tensor(x)).asnumpy() - before).max(-1) > 1e-4
    assert changed.tolist() == [[False] * 3 + [True] * 3, [False] * 6]
    assert np.allclose(cell(ms.Tensor(x[:, :4])).asnumpy(), cell(ms.Tensor(x)).asnumpy()[:, :4], atol=1e-5)


def test_no_projection_has_a_bias():
    names = {parameter.name for parameter in DecoderBlock(LLM).get_parameters()}
    assert names == {f"{p}.weight" for p in ("norm1", "qkv", "out", "norm2", "gate", "up", "down")}


def test_head_counts_what_its_logits_say():
    cell = Head(LLM)
    x = np.random.default_rng(0).standard_normal((4, 3, LLM.width)).astype(np.float32)
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    logits = (normed @ cell.weight.asnumpy().T).astype(np.float64)
    best = logits.argmax(-1)
    labels = best.copy()
    labels[0, 1] = -100  # the rest right: exact
    labels[1, 2] = (best[1, 2] + 1) % LLM.vocab_size  # one wrong: not exact
    labels[2] = -100  # nothing to predict: not counted
    labels[3] = [-100, (best[3, 1] + 1) % LLM.vocab_size, -100]
    counted = labels != -100
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -sum(scores[b, t, labels[b, t]] for b, t in np.argwhere(counted))
    got = [float(value) for value in cell(ms.Tensor(x), ints(labels))]
    assert got == pytest.approx([loss, 6, 1, 3], rel=1e-5)


def test_rows_without_labels_have_no_loss_and_no_gradient():
    cell, x = Head(LLM), ms.Tensor(np.ones((2, 3, LLM.width), np.float32))
    inputs = (x, ints(np.full((2, 3), -100)))
    assert [float(value) for value in cell(*inputs)] == [0, 0, 0, 0]
    (of_x, _), of_weights = backward(cell, inputs, SENS)
    assert not of_x.any()
    assert not any(gradient.any() for gradient in of_weights)


def test_gradient_equals_differences():
    cell = Slab([layer for layer in mllm(TINY) if layer.part == "llm"], first=False)
    _, ids, labels = batch(1, 3, 6, 6)
    features = np.random.default_rng(2).standard_normal((2, 4, LLM.width)).astype(np.float32)
    check_gradient(cell, (ms.Tensor(features), ids, labels), SENS)
