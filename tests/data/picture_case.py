"""PNG and JPEG files written by hand, with metadata as odd as one likes, for the tests of pictures."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
KINDS = [(depth, colour) for colour, depths in _DEPTHS.items() for depth in depths]
_PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def chunk(kind: bytes, inside: bytes) -> bytes:
    """Write a chunk with its right check sum."""
    return struct.pack(">L", len(inside)) + kind + inside + struct.pack(">L", zlib.crc32(kind + inside))


def rows_of(values_HWC: np.ndarray, depth: int) -> bytes:
    """Pack rows without a filter, in whole bytes each."""
    values = values_HWC.reshape(len(values_HWC), -1)
    if depth == 16:
        packed = values.astype(">u2").view(np.uint8)
    elif depth == 8:
        packed = values.astype(np.uint8)
    else:
        bits = values[..., None] >> np.arange(depth)[::-1] & 1
        packed = np.packbits(bits.reshape(len(values), -1).astype(np.uint8), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in packed)


def png(values_HWC, depth=8, colour=2, before=b"", behind=b"", interlaced=False, change=lambda stream: stream):
    """Write a PNG by hand; `before` and `behind` the pixels go chunks, `change` makes another stream of the rows."""
    height, width = values_HWC.shape[:2]
    grids = [values_HWC[y::dy, x::dx] for y, x, dy, dx in _PASSES] if interlaced else [values_HWC]
    rows = b"".join(rows_of(grid, depth) for grid in grids if grid.size)
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, interlaced)
    stream = change(zlib.compress(rows))
    pixels = chunk(b"IDAT", stream[:9]) + chunk(b"IDAT", b"") + chunk(b"IDAT", stream[9:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + pixels + behind + chunk(b"IEND", b"")


def exif(orientation, order="<", before=(), behind=()):
    """Write EXIF with the tag among others, each `(tag, type, count, four bytes)`."""
    tags = [*before, (0x0112, 3, 1, struct.pack(order + "HH", orientation, 0)), *behind]
    entries = b"".join(struct.pack(order + "HHL", *tag[:3]) + tag[3] for tag in tags)
    return {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HLH", 42, 8, len(tags)) + entries + bytes(4)


def jpeg(values_HWC, *segments, **options):
    """Write a JPEG with segments `(marker, inside)` behind its first marker."""
    file = BytesIO()
    Image.fromarray(values_HWC).save(file, "JPEG", quality=95, **options)
    content = file.getvalue()
    more = b"".join(bytes([0xFF, marker]) + struct.pack(">H", len(inside) + 2) + inside for marker, inside in segments)
    return content[:2] + more + content[2:]
