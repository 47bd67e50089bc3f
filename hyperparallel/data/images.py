"""Read PNG and JPEG files as square arrays, and find cheaply those that are broken.

Shape letters: C channels · S side in pixels, of the square that the model takes.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import numpy as np

from hyperparallel.data.picture import CutOff, Picture, take_apart
from hyperparallel.data.sample import BadSample
from hyperparallel.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Resize = Literal["pad", "stretch"]
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_BYTES_PER_PIXEL, _BYTES_BESIDES = 8, 2**24  # of a file: 16 bits of RGBA, and what cameras and editors add


@dataclass(frozen=True)
class ImageRule:
    """Say how a file becomes an array.

    Args:
        size: S.
        channels: 1 for grey, 3 for red, green and blue.
        mean: taken off values of 0..1, one number or one per channel.
        std: divides what is left, likewise.
        resize: `pad` keeps the proportions: the longer side becomes S, the rest is filled with the mean, half of it on
            each side. `stretch` makes both sides S.
        max_pixels: a file with more is refused before it is decoded.
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: Resize
    max_pixels: int


def image_path(folder: Path, name: str) -> Path:
    """Find the file of a name that was read from data, which may not leave the folder.

    Raises:
        BadSample: the name is absolute, climbs with `..`, or cannot be a name.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise BadSample(f"image {name!r} is not inside the image folder; give a name relative to it, without '..'")
    return folder / name


def check_image(path: Path, name: str, max_pixels: int) -> None:
    """Find out whether a file can be used, for a fraction of what reading it takes.

    What cannot be read, fails here: the same parts of the file are opened in the same way. Of a PNG the check sums are
    compared and the rows inflated, but not made into pixels. A JPEG has no check sums: its markers are followed to the
    end, and its stream is decoded for a picture of an eighth of the size, which fails where decoding the whole fails.

    Args:
        path: the file.
        name: what messages call it.
        max_pixels: the most that are allowed.

    Raises:
        BadSample: it is missing, no PNG or JPEG, broken, cut off, animated or too large.
        DataError: this machine cannot read it now, which says nothing about the file.
    """

    def look(image: Image, picture: Picture) -> None:
        if picture.stream is not None:
            picture.check_rows()
        else:
            image.draft(None, (1, 1))
            image.load()

    _with_image(path, name, max_pixels, look)


def read_image(path: Path, name: str, rule: ImageRule) -> np.ndarray:
    """Read a file as `(C, S, S)` float32.

    The picture is turned upright if the camera said how, put on white where it is transparent, made grey or RGB,
    resized with a bicubic filter that averages when it shrinks, and normalised. No other metadata are looked at.

    Args:
        path: the file.
        name: what messages call it.
        rule: how it becomes an array.

    Raises:
        BadSample: as `check_image`, or the pixels cannot be decoded.
        DataError: this machine cannot read it now.
    """
    return _with_image(path, name, rule.max_pixels, lambda image, picture: _as_array(image, picture, rule))


def _with_image(path: Path, name: str, max_pixels: int, use):
    """Open an image, refuse what the header shows, and turn what goes wrong in `use` into one of two errors."""
    from PIL import Image

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadSample(f"image {name!r} is not a file; give the name of a PNG or JPEG")
        if found.st_size == 0:
            raise BadSample(f"image {name!r} is empty; copy or download it again")
        if found.st_size > _BYTES_PER_PIXEL * max_pixels + _BYTES_BESIDES:  # it would be read as a whole
            raise BadSample(
                f"image {name!r} has {found.st_size} bytes, more than a picture of max_pixels = {max_pixels} can need; "
                "make it smaller or raise max_pixels"
            )
        picture = take_apart(path.read_bytes())
        if picture is None:
            raise BadSample(f"image {name!r} is not a PNG or JPEG; convert it")
        if picture.frames > 1:
            raise BadSample(f"image {name!r} is animated ({picture.frames} frames); save one of them as the picture")
        with Image.open(BytesIO(picture.data), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > max_pixels:
                raise BadSample(
                    f"image {name!r} has {image.width} x {image.height} pixels, more than max_pixels = {max_pixels}; "
                    "make it smaller or raise max_pixels"
                )
            return use(image, picture)
    except BadSample:
        raise
    except Image.DecompressionBombError:  # Pillow's own limit, which is above the largest max_pixels
        raise BadSample(f"image {name!r} has far more pixels than max_pixels = {max_pixels}; make it smaller") from None
    except Image.UnidentifiedImageError:
        raise BadSample(f"image {name!r} is broken, or of a kind that is hardly used; save it anew") from None
    except CutOff:
        raise BadSample(f"image {name!r} is cut off; copy or download it again") from None
    except MemoryError as error:
        raise DataError(
            f"image {name!r}: there is not enough memory to decode it; free some, or lower max_pixels = {max_pixels}"
        ) from error
    except OSError as error:
        if error.errno in _ABSENT:
            raise BadSample(f"image {name!r} is missing: {path} does not exist") from None
        if error.errno is not None:  # of the system, not of the picture: other ranks may be able to read it
            raise DataError(
                f"image {name!r}: {path} cannot be read ({error.strerror}); see to its rights and its disk"
            ) from error
        raise BadSample(f"image {name!r} is broken ({error}); replace it") from None
    except Exception as error:  # broken files make Pillow raise errors of nearly every kind
        raise BadSample(f"image {name!r} is broken ({error}); replace it") from None


def _as_array(image: Image, picture: Picture, rule: ImageRule) -> np.ndarray:
    from PIL.Image import Resampling

    image = _upright(_in_colour(image, picture, "L" if rule.channels == 1 else "RGB"), picture.orientation)
    width, height = rule.size, rule.size
    if rule.resize == "pad":
        longer = max(image.size)
        width, height = (max(1, round(side * rule.size / longer)) for side in image.size)
    values = np.asarray(image.resize((width, height), Resampling.BICUBIC), np.float32) / 255
    values_HWC = values.reshape(height, width, rule.channels)
    normal_HWC = (values_HWC - np.float32(rule.mean)) / np.float32(rule.std)
    top, left = (rule.size - height) // 2, (rule.size - width) // 2
    square_CSS = np.zeros((rule.channels, rule.size, rule.size), np.float32)
    square_CSS[:, top : top + height, left : left + width] = normal_HWC.transpose(2, 0, 1)
    return square_CSS


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turns = (Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM, Transpose.TRANSPOSE)
    turns = (*turns, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90)
    return image if orientation == 1 else image.transpose(turns[orientation - 2])


def _in_colour(image: Image, picture: Picture, mode: str) -> Image:
    from PIL import Image as images

    clear = None if picture.clear is None else images.fromarray(_clear_pixels(image, picture))
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        image = images.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = images.alpha_composite(images.new("RGBA", image.size, "white"), image)
    image = image.convert(mode)
    if clear is not None:
        image.paste("white", mask=clear)
    return image


def _clear_pixels(image: Image, picture: Picture) -> np.ndarray:
    """Find the pixels of the transparent grey or colour, compared in all their bits; `(H, W)`, 255 where they are."""
    from PIL import Image as images

    if len(picture.clear) == 1:
        values = np.asarray(image if image.mode.startswith("I") else image.convert("L"))[..., None]
        clear = np.array(picture.clear) * (255 // (2**picture.depth - 1) if picture.depth < 8 else 1)
    else:
        values, clear = np.asarray(image), np.array(picture.clear)
    same = values == clear
    if picture.depth == 16 and len(picture.clear) == 3:  # of which Pillow gives the upper 8 bits
        same = values == clear >> 8
        with images.open(BytesIO(picture.data), formats=("PNG",)) as lower:
            decoder, box, offset, _ = lower.tile[0]
            lower.tile = [(decoder, box, offset, "RGB;16L")]  # the other byte, as if it were the upper one
            same &= np.asarray(lower) == clear & 255
    return same.all(axis=-1).astype(np.uint8) * 255
