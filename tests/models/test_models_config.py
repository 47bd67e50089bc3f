import pytest
from pydantic import ValidationError

from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig

VISION = {"width": 16, "depth": 1, "heads": 2, "ffn": 32}
LLM = {"vocab_size": 10, "width": 16, "depth": 1, "heads": 4, "kv_heads": 2, "ffn": 32, "max_length": 8}


@pytest.mark.parametrize(
    ("sizes", "tokens"),
    [
        ({}, 4),
        ({"merge": 1}, 16),
        ({"merge": 4}, 1),
        ({"image_size": 28, "patch_size": 7}, 4),
        ({"image_size": 224, "patch_size": 14}, 64),
    ],
)
def test_tokens_per_image(sizes, tokens):
    assert VisionConfig(**VISION, **sizes).tokens_per_image == tokens


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (VisionConfig, {"image_size": 9}, ["image_size 9", "patch_size 2", "image_size 10"]),
        (VisionConfig, {"image_size": 10}, ["5 patches", "merge 2", "image_size 12"]),
        (VisionConfig, {"heads": 3}, ["width 16", "heads 3", "width 24"]),
        (VisionConfig, {"width": 12}, ["head of 6", "multiple of 4", "width 16"]),
        (VisionConfig, {"merge": 0}, ["merge", "greater than 0"]),
        (VisionConfig, {"widht": 16}, ["widht", "not permitted"]),
        (DecoderConfig, {"width": 18}, ["width 18", "heads 4", "width 24"]),
        (DecoderConfig, {"width": 12}, ["head of 3", "multiple of 2", "width 16"]),
        (DecoderConfig, {"kv_heads": 3}, ["heads 4", "kv_heads 3", "heads 6"]),
        (DecoderConfig, {"max_length": 0}, ["max_length", "greater than 0"]),
    ],
)
def test_wrong_sizes_are_refused(config, changes, words):
    sizes = VISION if config is VisionConfig else LLM
    with pytest.raises(ValidationError) as caught:
        config(**{**sizes, **changes})
    for word in words:
        assert word in str(caught.value)


def test_an_image_token_outside_the_vocabulary_is_refused():
    with pytest.raises(ValidationError, match=r"image_token 10 .* 0 \.\. 9, or llm.vocab_size of at least 11"):
        MllmConfig(llm=LLM, image_token=10)
