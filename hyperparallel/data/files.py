"""Texts and images of one's own: JSON lines with a folder of PNG and JPEG files.

Shape letters: N images · C channels · S side of an image in pixels · T tokens of one text.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import zlib
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from hyperparallel.data.images import ImageRule, Resize, check_image, image_path, read_image
from hyperparallel.data.lines import Line, LineFile, parse_line, to_ids
from hyperparallel.data.sample import IGNORE, BadSample, Sample, SampleInfo
from hyperparallel.data.tokens import WORDS, TokenNames, load_tokens
from hyperparallel.errors import DataError
from hyperparallel.limits import MAX_IMAGES, MAX_NUMBER, MAX_SIDE, MAX_TOKENS, Seed, check_sample
from hyperparallel.paths import PathText
from hyperparallel.schema import Items, Strict

TEXTS_KEPT = 512
"""Lines whose ids are kept, since a step asks for sizes, texts and images of the same lines."""

_DECIDING = {"source", "image_size", "channels", "mean", "std", "resize", "tokens", "shuffle", "seed"}
_UNKNOWN, _GOOD, _BAD = range(3)
"""What is known of a line."""

_logger = logging.getLogger(__name__)


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) else value


_Value = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
_PerChannel = Annotated[Items[_Value], BeforeValidator(_as_list)]


class FilesConfig(Strict):
    """Say where the samples are and how they are read; relative paths start at the working folder.

    Args:
        source: `files`, the name of this source in a YAML file.
        path: JSON lines to train on.
        held_out_path: JSON lines to evaluate on; none: there is no evaluation.
        images: folder that the names of images start at; default: the folder of the JSON lines.
        max_images: a sample with more is an error; 0 for text only.
        max_tokens: a text with more, image placeholders included, is an error; default: `model.llm.max_length`.
        image_size: side in pixels of the square that the model takes.
        channels: 1 for grey, 3 for RGB.
        mean: of the values 0..1, taken off; one number or one per channel.
        std: divides what is left; one number or one per channel.
        resize: `pad` keeps the proportions and fills up with the mean, `stretch` does not keep them.
        max_pixels: an image with more is an error, found before it is decoded.
        tokenizer: `words`, the 16 words of the digits task, or the path of a Hugging Face `tokenizer.json`.
        tokens: special tokens of the tokenizer.
        shuffle: false trains in the order of the file; the held-out file is always read in order.
        seed: of the order, another one in each epoch.
        on_error: `fail` stops at a line or an image that cannot be used; `skip` takes the next good line instead.
    """

    source: Literal["files"] = "files"
    path: PathText
    held_out_path: PathText | None = None
    images: PathText | None = None
    max_images: int = Field(8, ge=0, le=MAX_IMAGES)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    image_size: int = Field(224, ge=1, le=MAX_SIDE)
    channels: Literal[1, 3] = 3
    mean: _PerChannel = (0.5,)
    std: _PerChannel = (0.5,)
    resize: Resize = "pad"
    max_pixels: int = Field(50_000_000, ge=1, le=150_000_000)
    tokenizer: PathText = WORDS
    tokens: TokenNames = Field(default_factory=TokenNames)
    shuffle: bool = True
    seed: Seed = 0
    on_error: Literal["fail", "skip"] = "fail"

    @model_validator(mode="after")
    def _one_number_per_channel(self) -> FilesConfig:
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ValueError(f"{key} has {len(values)} numbers; give one, or {self.channels} for the channels")
        if min(self.std) <= 0:
            raise ValueError(f"std has the number {min(self.std)}; all must be above 0")
        check_sample(self.max_images, self.channels, self.image_size)
        return self

    def longest(self, tokens_per_image: int) -> int | None:
        """Give the tokens of the longest text; None if nothing limits them."""
        return self.max_tokens


class Files:
    """Serve the lines of a file as an endless stream, shuffled anew in each epoch.

    Sample i is line i modulo the number of lines, of the order of its epoch; it depends on the files, (seed, epoch)
    and i only, so every rank sees the same stream. With `on_error: skip` a line that cannot be used is replaced by the
    next good one of the order. To agree on that, each rank checks all lines and, once, all files of images of its
    replica, but makes the pixels only of the micro-batches that it encodes.

    Args:
        config: where the samples are.
        tokens_per_image: tokens that the model makes of one image, >= 1.
        split: `train` or `held_out`.

    Raises:
        DataError: a file or folder is missing, the tokenizer does not fit, or there is no held-out file.
    """

    def __init__(self, config: FilesConfig, tokens_per_image: int, split: Literal["train", "held_out"] = "train"):
        if tokens_per_image < 1:
            raise DataError(f"tokens_per_image is {tokens_per_image}; the model must make 1 or more of an image")
        if split not in ("train", "held_out"):
            raise DataError(f"split is {split!r}; the splits are train, held_out")
        path = config.path if split == "train" else config.held_out_path
        if path is None:
            raise DataError("held_out_path is missing, which evaluation reads; add it, or set evaluation.samples to 0")
        if config.max_images and importlib.util.find_spec("PIL") is None:
            raise DataError("source: files reads images with Pillow; pip install 'hyperparallel[files]'")
        self.config, self.tokens_per_image, self.split = config, tokens_per_image, split
        self._lines = _line_file(Path(path), *_stamp(path))
        self.folder = Path(path).parent if config.images is None else Path(config.images)
        if not os.path.isdir(self.folder):
            raise DataError(f"images = {config.images!r} is not a folder; give the one that holds the images")
        self.skipped: dict[str, str] = {}
        """Lines that could not be used, among those met so far: their place and the reason."""
        self._met: dict[str, int] = {}  # of these, the first sample in whose place each stood
        self._lock = Lock()  # for `_met`: a step and the thread that reads ahead meet the same lines
        self._tokens = load_tokens(config.tokenizer, config.tokens, images=config.max_images > 0)
        self._usable = bytearray(len(self._lines))
        self._order = lru_cache(maxsize=2)(self._new_order)
        self._text = lru_cache(maxsize=TEXTS_KEPT)(self._read_text)
        fields = ("channels", "mean", "std", "resize", "max_pixels")
        self._rule = ImageRule(config.image_size, **{name: getattr(config, name) for name in fields})

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id of a sample."""
        return self._tokens.size

    @property
    def image_id(self) -> int | None:
        """The placeholder's id; None if the tokenizer has none and no sample needs it."""
        return self._tokens.image

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def digest(self) -> int:
        """A check sum of all lines."""
        return self._lines.digest

    @property
    def facts(self) -> dict[str, Any]:
        """What the stream of samples follows from, as JSON holds it, and `file`, where it was.

        Not the content of images, and not the limits, as a higher one lets a job go on from a line that it stopped at.
        """
        known = self.config.tokenizer == WORDS
        return {
            **self.config.model_dump(mode="json", include=_DECIDING),
            "tokenizer": WORDS if known else zlib.crc32(Path(self.config.tokenizer).read_bytes()),
            "file": str(self._lines.path),
            "lines": len(self),
            "digest": self.digest,
        }

    def skipped_before(self, index: int) -> frozenset[str]:
        """Name the lines that were skipped on the way to sample `index`, of the samples that were asked for."""
        with self._lock:
            return frozenset(place for place, first in self._met.items() if first < index)

    def sample(self, index: int, pixels: bool = True) -> Sample:
        """Make sample `index`.

        Args:
            index: any integer >= 0.
            pixels: False leaves `images` None and decodes nothing.

        Raises:
            DataError: the line or one of its images cannot be used; names file, line and image.

        Returns:
            The sample; images `(N, C, S, S)` float32.
        """
        number = self._line(index)
        line, ids_T, labels_T = self._text(number)
        images_NCSS = None
        if pixels:
            size = (self.config.channels, self.config.image_size, self.config.image_size)
            # What `skip` would leave out, `fail` stops at, even where it could be decoded in part.
            check = self._usable[number] == _UNKNOWN
            images = [self._named(number, partial(self._image, name, check)) for name in line.images]
            self._usable[number] = _GOOD
            images_NCSS = np.stack(images) if images else np.zeros((0, *size), np.float32)
        return Sample(
            images_NCSS,
            ids_T,
            labels_T,
            self.tokens_per_image,
            image_count=len(line.images),
            name=self._lines.place(number),
            pad_id=self._tokens.pad,
            image_id=-1 if self._tokens.image is None else self._tokens.image,
        )

    def describe(self, index: int) -> SampleInfo:
        """Give the sizes of sample `index` >= 0 from its text; no image is decoded."""
        line, ids_T, labels_T = self._text(self._line(index))
        return SampleInfo(len(line.images), len(ids_T), int(np.count_nonzero(labels_T != IGNORE)))

    def _line(self, index: int) -> int:
        """Find the line of a sample."""
        epoch, place = divmod(index, len(self))
        order = self._order(epoch)
        if self.config.on_error == "fail":
            return int(order[place])
        for step in range(len(self)):
            number = int(order[(place + step) % len(self)])
            if self._is_usable(number):
                return number
            self._meet(self._lines.place(number), index)
        first = next(f"{where}: {why}" for where, why in self.skipped.items())
        raise DataError(f"{self._lines.path}: none of its {len(self)} lines can be used; {first}")

    def _meet(self, place: str, index: int) -> None:
        with self._lock:
            self._met[place] = min(index, self._met.get(place, index))

    def _is_usable(self, number: int) -> bool:
        if self._usable[number] == _UNKNOWN:
            try:
                for name in self._text(number)[0].images:
                    self._named(number, partial(self._check, name))
                self._usable[number] = _GOOD
            except BadSample as error:
                self._usable[number] = _BAD
                self.skipped[self._lines.place(number)] = error.reason
                _say_once(f"skipped {error}")
        return self._usable[number] == _GOOD

    def _check(self, name: str) -> None:
        check_image(image_path(self.folder, name), name, self.config.max_pixels)

    def _read_text(self, number: int) -> tuple[Line, np.ndarray, np.ndarray]:
        return self._named(number, partial(self._parse, self._lines.read(number)))

    def _parse(self, raw: bytes) -> tuple[Line, np.ndarray, np.ndarray]:
        line = parse_line(raw)
        for name in line.images:
            image_path(self.folder, name)
        if len(line.images) > self.config.max_images:
            raise BadSample(
                f"has {len(line.images)} images, more than max_images = {self.config.max_images}; raise it or leave "
                "images out"
            )
        ids_T, labels_T = to_ids(line, self._tokens, self.tokens_per_image)
        if self.config.max_tokens is not None and len(ids_T) > self.config.max_tokens:
            raise BadSample(
                f"has {len(ids_T)} tokens, more than max_tokens = {self.config.max_tokens}; raise it (and "
                "model.llm.max_length) or shorten the text"
            )
        return line, ids_T, labels_T

    def _image(self, name: str, check: bool) -> np.ndarray:
        if check:
            self._check(name)
        try:
            return read_image(image_path(self.folder, name), name, self._rule)
        except BadSample as error:
            if self.config.on_error == "fail":
                raise
            raise DataError(
                f"{error.reason}. It passed the check, so other ranks went on with this line and it cannot be skipped "
                "any more; if the file did not change meanwhile, take the line out"
            ) from None

    def _named(self, number: int, make):
        """Call `make`; say in its error which line it is about."""
        try:
            return make()
        except BadSample as error:
            raise BadSample(error.reason, self._lines.place(number)) from None
        except DataError as error:
            raise DataError(f"{self._lines.place(number)}: {error}") from error

    def _new_order(self, epoch: int) -> np.ndarray:
        if self.split == "held_out" or not self.config.shuffle:
            return np.arange(len(self))
        return np.random.default_rng([self.config.seed, epoch]).permutation(len(self))


def _stamp(path: str) -> tuple[int, int]:
    """Give time and size of a file, by which a changed one is noticed; zeros if it is missing."""
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _line_file(path: Path, time_ns: int, size: int) -> LineFile:
    return LineFile(path)


@lru_cache(maxsize=10_000)
def _say_once(text: str) -> None:
    """Log what was skipped; several feeds of one process meet the same lines."""
    _logger.warning(text)
