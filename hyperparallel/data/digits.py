"""Read-out of handwritten digits: real images, bundled with scikit-learn, so no download.

Shape letters: N images · S side of an image in pixels · T tokens of one text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from hyperparallel.data.sample import Sample, SampleInfo, next_token_labels
from hyperparallel.data.vocabulary import BOS, EOS, IMAGE, NOTHING, READS, VOCABULARY_SIZE, ZERO
from hyperparallel.errors import DataError
from hyperparallel.limits import MAX_IMAGES, MAX_SIDE, Seed, check_sample
from hyperparallel.schema import Strict

BUNDLED_IMAGES = 1797
BUNDLED_SIDE = 8
"""Side of the bundled images, in pixels; their grey values are 0..16."""
MEAN, STD = 0.3053, 0.3760
"""Of all bundled images, once scaled to 0..1."""
LONG_TAIL_SHARE = 1 / 8
"""Share of the samples that `mix: long_tail` fills up to `max_images`."""

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = get_args(Split)


class DigitsConfig(Strict):
    """Say what samples of the digits task look like.

    Args:
        source: `digits`, the name of this source in a YAML file.
        min_images: fewest images of a sample, 0..max_images.
        max_images: most images of a sample.
        image_size: side in pixels, a multiple of 8; above 8 every pixel is repeated.
        mix: how many images a sample has. `uniform`: each number from min_images to max_images is as likely.
            `long_tail`: 7 of 8 samples have min_images + k with a probability that halves with every k, the
            others have max_images; for 0..6 images that is 1.6 on average, with 13 % at the maximum.
        seed: any integer >= 0; another seed is another stream over the same images.
        held_out: fraction of the images, 0..0.9, that only the held-out split draws from. Which ones depends
            on nothing else, so a run with another seed has not trained on them either.
    """

    source: Literal["digits"] = "digits"
    min_images: int = Field(0, ge=0, le=MAX_IMAGES)
    max_images: int = Field(6, ge=0, le=MAX_IMAGES)
    image_size: int = Field(BUNDLED_SIDE, ge=BUNDLED_SIDE, le=MAX_SIDE, multiple_of=BUNDLED_SIDE)
    mix: Literal["uniform", "long_tail"] = "uniform"
    seed: Seed = 0
    held_out: float = Field(0.2, ge=0.0, le=0.9)

    @property
    def channels(self) -> int:
        """Colour channels of an image: grey."""
        return 1

    def longest(self, tokens_per_image: int) -> int:
        """Give the tokens of the longest text: <bos> images reads words <eos>; "nothing" without image."""
        return 3 + self.max_images * tokens_per_image + max(1, self.max_images)

    @model_validator(mode="after")
    def _ordered(self) -> DigitsConfig:
        if self.min_images > self.max_images:
            raise ValueError(f"min_images is {self.min_images}, above max_images {self.max_images}; lower it")
        check_sample(self.max_images, self.channels, self.image_size)
        return self


class Digits:
    """Draw samples of 0 to `max_images` digits, each with the text that reads them out.

    The text is `<bos> <image>... reads three seven one <eos>` with `tokens_per_image` placeholders per image;
    without images `<bos> reads nothing <eos>`. Only the words after `reads`, and `<eos>`, are predicted.
    A sample depends on (config, split, index) only, so every rank can make any of them.

    Args:
        config: what the samples look like.
        tokens_per_image: tokens that the model makes of one image, >= 1.
        split: `train` or `held_out`; no image is in both.

    Raises:
        DataError: tokens_per_image below 1, an unknown split, or a held-out split without images.

    >>> digits = Digits(DigitsConfig(min_images=2, max_images=2), tokens_per_image=4)
    >>> digits.describe(0)
    SampleInfo(images=2, tokens=13, targets=3)
    >>> digits.sample(0).images.shape
    (2, 1, 8, 8)
    """

    vocabulary_size = VOCABULARY_SIZE
    image_id = IMAGE

    def __init__(self, config: DigitsConfig, tokens_per_image: int, split: Split = "train") -> None:
        if tokens_per_image < 1:
            raise DataError(f"tokens_per_image is {tokens_per_image}; the model must make 1 or more of an image")
        if split not in SPLITS:
            raise DataError(f"split is {split!r}; the splits are {', '.join(SPLITS)}")
        if split == "held_out" and not _held_out_images(config.held_out):
            raise DataError(
                f"held_out is {config.held_out}: of {BUNDLED_IMAGES} images that leaves none for the held_out "
                "split; set it to 0.2 or so"
            )
        self.config = config
        self.tokens_per_image = tokens_per_image
        self.split = split
        self._counts = _cumulative(config)

    def sample(self, index: int, pixels: bool = True) -> Sample:
        """Make sample `index`.

        Args:
            index: any integer >= 0.
            pixels: False leaves `images` None: the text alone, for ranks that run no encoder.

        Returns:
            The sample; images `(N, 1, S, S)` float32 with mean 0 and deviation 1 over the whole data set.
        """
        rng = self._rng(index)
        count = self._count(rng)
        pool = self.pool()
        numbers_N = pool[rng.integers(len(pool), size=count)]
        images_D88, digits_D = bundled()
        ids_T, labels_T = self._text(digits_D[numbers_N].tolist())
        images_N1SS = None
        if pixels:
            repeat = self.config.image_size // BUNDLED_SIDE
            images_N1SS = images_D88[numbers_N, None].repeat(repeat, axis=2).repeat(repeat, axis=3)
        return Sample(
            images_N1SS,
            ids_T,
            labels_T,
            self.tokens_per_image,
            image_count=count,
            name=f"{self.split}[{index}]",
        )

    def describe(self, index: int) -> SampleInfo:
        """Give the sizes of sample `index` >= 0 from its random draw alone: no image is looked at."""
        count = self._count(self._rng(index))
        spoken = max(count, 1)
        tokens = 1 + count * self.tokens_per_image + 1 + spoken + 1
        return SampleInfo(images=count, tokens=tokens, targets=spoken + 1)

    @property
    def facts(self) -> dict[str, Any]:
        """What the stream of samples follows from, as JSON holds it."""
        return self.config.model_dump(mode="json")

    def pool(self) -> np.ndarray:
        """Give the numbers of the bundled images that this split draws from."""
        train, held_out = _pools(self.config.held_out)
        return train if self.split == "train" else held_out

    def _rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, SPLITS.index(self.split), index])

    def _count(self, rng: np.random.Generator) -> int:
        # The count is the first draw, so that `describe` stops here and still agrees with `sample`.
        return self.config.min_images + int(np.searchsorted(self._counts, rng.random(), side="right"))

    def _text(self, digits: list[int]) -> tuple[np.ndarray, np.ndarray]:
        prompt = [BOS, *[IMAGE] * (len(digits) * self.tokens_per_image), READS]
        spoken = [ZERO + digit for digit in digits] or [NOTHING]
        ids_T = np.array([*prompt, *spoken, EOS], np.int32)
        return ids_T, next_token_labels(ids_T, first_target=len(prompt))


def image_count_probabilities(config: DigitsConfig) -> np.ndarray:
    """Give the probability of each image count, from `min_images` to `max_images`.

    >>> image_count_probabilities(DigitsConfig(max_images=3, mix="uniform")).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    counts = np.arange(config.max_images - config.min_images + 1)
    if config.mix == "uniform":
        return np.full(len(counts), 1 / len(counts))
    weights = 0.5**counts
    probabilities = (1 - LONG_TAIL_SHARE) * weights / weights.sum()
    probabilities[-1] += LONG_TAIL_SHARE
    return probabilities


def _cumulative(config: DigitsConfig) -> np.ndarray:
    # Without the last sum: rounding may leave it just below 1, and a draw above it would be one too many.
    return np.cumsum(image_count_probabilities(config))[:-1]


@lru_cache(maxsize=1)
def bundled() -> tuple[np.ndarray, np.ndarray]:
    """Load the bundled images `(1797, 8, 8)` float32, normalised, and the digit that each one shows."""
    # Imported here: it takes a second, and ranks that only describe samples never need it.
    from sklearn.datasets import load_digits

    data = load_digits()
    images_D88 = ((data.images / 16.0 - MEAN) / STD).astype(np.float32)
    return images_D88, data.target


@lru_cache(maxsize=8)
def _pools(held_out: float) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(BUNDLED_IMAGES)
    kept = _held_out_images(held_out)
    return np.sort(order[kept:]), np.sort(order[:kept])


def _held_out_images(fraction: float) -> int:
    return round(fraction * BUNDLED_IMAGES)
