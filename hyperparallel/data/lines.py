"""A file of JSON lines: found by number, and read as a prompt, a response and the names of images."""

from __future__ import annotations

import os
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hyperparallel.data.sample import BadSample, next_token_labels
from hyperparallel.data.tokens import Tokens
from hyperparallel.errors import DataError, JsonError
from hyperparallel.io import parse_json

MARKER = "<image>"
"""Stands in a prompt where an image belongs."""


class LineFile:
    """Find the lines of a file without holding them.

    The file is read once for where its lines begin and their check sums; 20 bytes of memory per line. Empty lines do
    not count. Lines may be appended while it is in use: they are not seen.

    Args:
        path: a text file in UTF-8.

    Raises:
        DataError: it cannot be read, or has no lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts, self._numbers, self._sums = array("q"), array("q"), array("I")
        at = 0
        # A device may have no end, and a pipe is read once.
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise DataError(f"{path}: is no regular file; give a file of JSON lines")
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        self._starts.append(at)
                        self._numbers.append(number)
                        self._sums.append(_check_sum(line))
                    at += len(line)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); give a file of JSON lines") from None
        if not self._starts:
            raise DataError(f"{path}: has no lines; give a file with one JSON object per line")

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def digest(self) -> int:
        """A check sum of all lines, by which ranks find out that they read the same."""
        return zlib.crc32(self._sums.tobytes())

    def read(self, index: int) -> bytes:
        """Read line `index`, from 0, empty lines not counted.

        Raises:
            DataError: it is not what it was when the file was first read.
        """
        try:
            with self.path.open("rb") as file:  # opened anew: several threads read
                file.seek(self._starts[index])
                line = file.readline()
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read any more ({error.strerror}); put it back") from None
        if _check_sum(line) != self._sums[index]:
            # Other ranks may have read the old line, so that it cannot be skipped either.
            raise DataError(
                f"{self.path}: line {self._numbers[index]} changed while the file was in use; leave it alone while "
                "it is read, and start again"
            )
        return line

    def place(self, index: int) -> str:
        """Name line `index` as an editor does: file and number from 1."""
        return f"{self.path.name}, line {self._numbers[index]}"


def _check_sum(line: bytes) -> int:
    return zlib.crc32(line.rstrip(b"\r\n"))  # the last line gets an end when another is appended


@dataclass(frozen=True)
class Line:
    """Hold what one line says: `images[i]` belongs to the i-th marker of `prompt`."""

    prompt: str
    response: str
    images: tuple[str, ...] = ()


def parse_line(raw: bytes) -> Line:
    """Read one line.

    Raises:
        BadSample: it is not JSON, an object in it has a key twice, a key is missing or of a wrong type, or markers and
            images are not as many.

    >>> parse_line(b'{"prompt": "<image> reads", "response": "seven", "images": ["7.png"]}')
    Line(prompt='<image> reads', response='seven', images=('7.png',))
    """
    try:
        values = parse_json(raw.decode("utf-8-sig"), finite=False)  # numbers are in other keys, if at all
    except UnicodeDecodeError:
        raise BadSample("is not text in UTF-8; convert it") from None
    except JsonError as error:
        raise BadSample(f"{error}; write one object per line") from None
    if not isinstance(values, dict):
        raise BadSample(f"holds {type(values).__name__}; expected an object with 'prompt' and 'response'")
    for key in ("prompt", "response"):
        if not isinstance(values.get(key), str):
            given = f"{key!r} is {values[key]!r:.40}" if key in values else f"{key!r} is missing"
            raise BadSample(f"{given}; expected a text")
        if not values[key].isascii() and any("\ud800" <= letter <= "\udfff" for letter in values[key]):
            raise BadSample(f"{key!r} holds half of a surrogate pair; write the character itself")
    images = values.get("images", [])
    if not isinstance(images, list) or not all(isinstance(name, str) for name in images):
        raise BadSample(f"'images' is {images!r:.40}; expected a list of file names")
    line = Line(values["prompt"], values["response"], tuple(images))
    if MARKER in line.response:
        raise BadSample(f"'response' holds {MARKER}; images belong into the prompt")
    markers = line.prompt.count(MARKER)
    if markers != len(images):
        raise BadSample(f"'prompt' has {markers} {MARKER} but 'images' names {len(images)}; one each is needed")
    return line


def to_ids(line: Line, tokens: Tokens, tokens_per_image: int) -> tuple[np.ndarray, np.ndarray]:
    """Make ids and labels of a line: bos, the prompt, the response, eos; the response and eos are predicted.

    What stands between two markers is encoded by itself.

    Args:
        line: what was read.
        tokens: the tokenizer.
        tokens_per_image: placeholders that a marker becomes.

    Raises:
        BadSample: the text cannot be encoded, or makes a placeholder by itself.

    Returns:
        Two `(T,)` int32 arrays.
    """
    first, *others = (_encode(piece, tokens) for piece in line.prompt.split(MARKER))
    prompt = [*([] if tokens.bos is None else [tokens.bos]), *first]
    for piece in others:
        prompt += [tokens.image] * tokens_per_image + piece
    ids_T = np.array([*prompt, *_encode(line.response, tokens), tokens.eos], np.int32)
    # Nothing predicts the very first token, which is part of the response if there is neither bos nor prompt.
    return ids_T, next_token_labels(ids_T, first_target=max(1, len(prompt)))


def _encode(text: str, tokens: Tokens) -> list[int]:
    try:
        ids = tokens.encode(text)
    except Exception as error:  # of the words, a DataError; of a library, anything
        raise BadSample(f"cannot be encoded: {error}") from None
    if tokens.image is not None and tokens.image in ids:
        raise BadSample(
            f"{text!r:.40} makes the image token by itself; only {MARKER} in the prompt may: leave it out, or give "
            "tokens.image a token that no text makes"
        )
    return ids
