"""Read PNG and JPEG files as square arrays, and find cheaply those that are broken.

Shape letters: C channels · S side in pixels, of the square that the model takes.
"""

from __future__ import annotations

import errno
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import numpy as np

from hyperparallel.data.sample import BadSample
from hyperparallel.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Resize = Literal["pad", "stretch"]
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
_END_OF_IMAGE, _WITHOUT_LENGTH = 0xD9, 0x01
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

    Of a PNG the check sums tell. A JPEG has none: its markers are followed to the end, and its stream is decoded for a
    picture of an eighth of the size, which fails where decoding the whole fails.

    Args:
        path: the file.
        name: what messages call it.
        max_pixels: the most that are allowed.

    Raises:
        BadSample: it is missing, no PNG or JPEG, broken, cut off, animated or too large.
        DataError: this machine cannot read it now, which says nothing about the file.
    """

    from PIL import ImageOps

    def look(image: Image) -> None:
        if image.format == "PNG":
            image.verify()
            return
        if not _jpeg_is_whole(path.read_bytes()):
            raise BadSample(f"image {name!r} is cut off; copy or download it again")
        image.draft(None, (1, 1))
        ImageOps.exif_transpose(image)  # decodes, and reads how the camera was held

    _with_image(path, name, max_pixels, look)


def read_image(path: Path, name: str, rule: ImageRule) -> np.ndarray:
    """Read a file as `(C, S, S)` float32.

    The picture is turned upright if the camera said how, put on white where it is transparent, made grey or RGB,
    resized with a bicubic filter that averages when it shrinks, and normalised.

    Args:
        path: the file.
        name: what messages call it.
        rule: how it becomes an array.

    Raises:
        BadSample: as `check_image`, or the pixels cannot be decoded.
        DataError: this machine cannot read it now.
    """
    return _with_image(path, name, rule.max_pixels, lambda image: _as_array(image, rule))


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
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            # A JPEG of several pictures is a photo with its previews; of a PNG they are an animation.
            frames = getattr(image, "n_frames", 1) if image.format == "PNG" else 1
            if frames > 1:
                raise BadSample(f"image {name!r} is animated ({frames} frames); save one of them as the picture")
            if image.width * image.height > max_pixels:
                raise BadSample(
                    f"image {name!r} has {image.width} x {image.height} pixels, more than max_pixels = {max_pixels}; "
                    "make it smaller or raise max_pixels"
                )
            return use(image)
    except BadSample:
        raise
    except Image.DecompressionBombError:  # Pillow's own limit, which is above the largest max_pixels
        raise BadSample(f"image {name!r} has far more pixels than max_pixels = {max_pixels}; make it smaller") from None
    except Image.UnidentifiedImageError:
        raise BadSample(f"image {name!r} is not a PNG or JPEG; convert it") from None
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


def _jpeg_is_whole(data: bytes) -> bool:
    """Walk from marker to marker to the end-of-image marker; what some cameras append after it does not matter."""
    at = 2
    while found := _JPEG_MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker == _END_OF_IMAGE:
            return True
        if marker != _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2], "big")
    return False


def _as_array(image: Image, rule: ImageRule) -> np.ndarray:
    from PIL import ImageOps
    from PIL.Image import Resampling

    image = _in_colour(ImageOps.exif_transpose(image), "L" if rule.channels == 1 else "RGB")
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


def _in_colour(image: Image, mode: str) -> Image:
    from PIL import Image as images

    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        return images.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)).convert(mode)
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = images.alpha_composite(images.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
