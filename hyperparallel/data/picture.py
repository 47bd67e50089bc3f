"""Take PNG and JPEG files apart: what the pixels are made of and how the camera was held matter, all else is left out.

Shape letters: H, W height and width in pixels.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # colour type -> numbers per pixel
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PALETTE = 3
_PIECE = 2**20  # bytes that are inflated at a time
_LAST_FILTER = 4
_MOST_TEXT = 2**24  # bytes of a compressed text that are looked through for an orientation
_RAW_EXIF, _XMP = b"Raw profile type exif", b"XML:com.adobe.xmp"
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
_END_OF_IMAGE, _START_OF_SCAN, _WITHOUT_LENGTH = 0xD9, 0xDA, 0x01
_METADATA = {*range(0xE0, 0xF0), 0xFE}  # segments of applications, and comments
_ORIENTATION = 0x0112
_INTEGERS = {3: "H", 4: "L", 8: "h", 9: "l"}  # types of EXIF, as `struct` calls them
_ORIENTATION_OF_XMP = re.compile(rb"""tiff:Orientation\s*(?:=\s*["']|>)\s*([1-8])\s*["'<]""")


class CutOff(ValueError):
    """A JPEG that ends before its end marker."""


@dataclass(frozen=True)
class Picture:
    """Hold what matters of a file.

    Args:
        data: a file of the same format without anything that the pixels do not depend on.
        orientation: 1..8 as EXIF has it; 1 is upright.
        frames: above 1 in an animation.
        rows: H of a PNG.
        row_bytes: bytes of one of its rows, with the filter's in front.
        stream: its compressed rows; None where `data` has to be decoded to find out whether they are whole.
        clear: the grey, or the red, green and blue, that is transparent; None if there is none, or a palette says it.
        depth: bits of each of these numbers.
    """

    data: bytes
    orientation: int = 1
    frames: int = 1
    rows: int = 0
    row_bytes: int = 0
    stream: memoryview | None = None
    clear: tuple[int, ...] | None = None
    depth: int = 8

    def check_rows(self) -> None:
        """Inflate the stream, at most a little further than the picture goes, without making pixels.

        Raises:
            ValueError: it ends too early, or has a filter that does not exist.
        """
        at, expected = 0, self.rows * self.row_bytes
        for piece in _inflated(self.stream):
            filters = piece[-at % self.row_bytes : expected - at : self.row_bytes]
            if max(filters, default=0) > _LAST_FILTER:
                raise ValueError(f"filter {max(filters)} in the pixels")
            at += len(piece)
            if at > expected:
                return
        if at < expected:
            raise ValueError(f"pixels of {at // self.row_bytes} rows instead of {self.rows}")


def take_apart(content: bytes) -> Picture | None:
    """Find the parts of a file that matter.

    Metadata may be as odd as they like, and in a PNG of any size: they are stepped over. Of all chunks of a PNG, theirs
    too, the check sums must be right: a wrong one says that the file is damaged, and hides what the chunk was.

    Args:
        content: a whole file.

    Raises:
        CutOff: a JPEG that ends before its end marker.
        ValueError: a PNG with a chunk that is missing, cut off, damaged or impossible.

    Returns:
        The parts; None if it is neither PNG nor JPEG.
    """
    if content.startswith(_PNG):
        return _png(content)
    return _jpeg(content) if content.startswith(_JPEG) else None


def _png(content: bytes) -> Picture:
    head: dict[bytes, bytes] = {}  # the first chunk of each kind before the pixels
    pixels: list[memoryview] = []
    exifs: list[bytes] = []
    texts: list[tuple[bytes, bytes]] = []
    for kind, inside in _chunks(content):
        if not head and kind != b"IHDR":
            raise ValueError(f"begins with chunk {_named(kind)} instead of IHDR")
        if kind == b"IDAT":
            pixels.append(inside)
        elif kind == b"eXIf":
            exifs.append(bytes(inside))
        elif kind in (b"tEXt", b"zTXt", b"iTXt"):
            texts += _wanted_text(kind, bytes(inside))
        elif not pixels:
            if kind in head and kind in (b"IHDR", b"PLTE", b"tRNS"):
                raise ValueError(f"has two chunks {kind.decode()}")
            head.setdefault(kind, bytes(inside))
    width, height, depth, colour, interlaced = _header(head[b"IHDR"])
    before = [_PNG, _chunk(b"IHDR", head[b"IHDR"]), *(_palette(head, depth) if colour == _PALETTE else [])]
    length, start = sum(map(len, pixels)), sum(map(len, before)) + 8
    # One chunk of all pixels, copied once: pictures are large.
    data = b"".join((*before, struct.pack(">L", length), b"IDAT", *pixels, _sum(b"IDAT", *pixels), _chunk(b"IEND")))
    exifs += [_from_hex(text) for key, text in texts if key == _RAW_EXIF]
    return Picture(
        data,
        _orientation(exifs, [text for key, text in texts if key == _XMP]),
        _frames(head),
        height,
        1 + (width * depth * _SAMPLES[colour] + 7) // 8,
        None if interlaced else memoryview(data)[start : start + length],
        _clear(head, depth, colour),
        depth,
    )


def _chunks(content: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Give kind and inside of each chunk up to the last, IEND."""
    at, view = len(_PNG), memoryview(content)
    while True:
        kind, end = content[at + 4 : at + 8], at + 12 + int.from_bytes(view[at : at + 4], "big")
        if end > len(content):
            raise ValueError(f"cut off in chunk {_named(kind)}")
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise ValueError(f"wrong check sum of chunk {_named(kind)}")
        yield kind, view[at + 8 : end - 4]
        if kind == b"IEND":
            return
        at = end


def _named(kind: bytes) -> str:
    return repr(kind.decode("latin-1"))


def _chunk(kind: bytes, inside: bytes = b"") -> bytes:
    return struct.pack(">L", len(inside)) + kind + inside + _sum(kind, inside)


def _sum(*pieces: bytes | memoryview) -> bytes:
    return struct.pack(">L", reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0))


def _header(inside: bytes) -> tuple[int, int, int, int, int]:
    """Read width, height, depth, colour type and interlacing, all of which must be as the format allows."""
    if len(inside) != 13:
        raise ValueError(f"chunk IHDR has {len(inside)} bytes instead of 13")
    width, height, depth, colour, method, filters, interlaced = struct.unpack(">LLBBBBB", inside)
    if not width or not height or depth not in _DEPTHS.get(colour, ()) or method or filters or interlaced > 1:
        raise ValueError(f"chunk IHDR has {width} x {height}, {depth} bits, colour type {colour}, {[*inside[10:]]}")
    return width, height, depth, colour, interlaced


def _palette(head: dict[bytes, bytes], depth: int) -> list[bytes]:
    """Make the chunks of a palette and its transparency; colours that no pixel can have are left out."""
    colours, alphas = head.get(b"PLTE", b""), head.get(b"tRNS", b"")
    if not colours or len(colours) % 3:
        raise ValueError(f"its palette has {len(colours)} bytes instead of 3 for each colour")
    alphas = [_chunk(b"tRNS", alphas[: 2**depth])] if alphas else []
    return [_chunk(b"PLTE", colours[: 3 * 2**depth]), *alphas]


def _clear(head: dict[bytes, bytes], depth: int, colour: int) -> tuple[int, ...] | None:
    """Read the transparent grey or colour, which other colour types do not have."""
    if b"tRNS" not in head or colour not in (0, 2):
        return None
    needed = 2 * _SAMPLES[colour]
    if len(head[b"tRNS"]) < needed:
        raise ValueError(f"chunk tRNS has {len(head[b'tRNS'])} bytes instead of {needed}")
    # Only as many bits count as the pixels have.
    return tuple(number & 2**depth - 1 for number in struct.unpack(f">{needed // 2}H", head[b"tRNS"][:needed]))


def _frames(head: dict[bytes, bytes]) -> int:
    """Count the pictures of an animation, of which the one that other programs show need not be one."""
    frames = int.from_bytes(head.get(b"acTL", b"")[:4], "big")
    return frames + (b"fcTL" not in head) if frames else 1


def _inflated(stream: memoryview) -> Iterator[bytes]:
    inflate = zlib.decompressobj()
    for at in range(0, len(stream), _PIECE):
        rest = stream[at : at + _PIECE]
        while len(rest):
            yield inflate.decompress(rest, _PIECE)
            rest = inflate.unconsumed_tail
        if inflate.eof:
            return
    yield inflate.flush()


def _wanted_text(kind: bytes, inside: bytes) -> list[tuple[bytes, bytes]]:
    """Give keyword and text if an orientation may be in it; of what is odd, nothing or what there is."""
    key, _, text = inside.partition(b"\0")
    if key not in (_RAW_EXIF, _XMP):
        return []
    packed = kind == b"zTXt"
    if packed:
        text = text[1:]
    elif kind == b"iTXt":
        packed, text = text[:1] == b"\1", text[2:].split(b"\0", 2)[-1]  # behind language and translated keyword
    try:
        return [(key, zlib.decompressobj().decompress(text, _MOST_TEXT) if packed else text)]
    except zlib.error:
        return []


def _from_hex(text: bytes) -> bytes:
    """Read a profile as ImageMagick writes it: a name, a length, and lines of digits."""
    digits = re.match(rb"[0-9a-fA-F]*", b"".join(text.split(b"\n")[3:]))[0]
    return bytes.fromhex(digits[: len(digits) // 2 * 2].decode())


def _jpeg(content: bytes) -> Picture:
    """Walk from marker to marker to the end-of-image marker; what some cameras append after it does not matter."""
    kept, exifs, xmps = [content[:2]], [], []
    at, scans = 2, 0  # where the scans begin, once it is known: from there on all is kept
    while found := _MARKER.search(content, at):
        marker, start, at = found[1][0], found.end() - 2, found.end()
        if marker == _END_OF_IMAGE:
            kept.append(content[scans or start : at])
            return Picture(b"".join(kept), _orientation([b"".join(exifs), *exifs], xmps))
        if marker == _WITHOUT_LENGTH:
            continue
        at += max(2, int.from_bytes(content[at : at + 2], "big"))
        if scans:
            continue
        inside = content[start + 4 : at]
        if marker == _START_OF_SCAN:
            scans = start
        elif marker not in _METADATA or _says_colours(marker, inside):
            kept.append(content[start:at])
        elif inside.startswith(b"Exif\0\0"):
            exifs.append(inside[6:])
        elif inside.startswith(b"http://ns.adobe.com/xap/1.0/\0"):
            xmps.append(inside)
    raise CutOff("no end-of-image marker")


def _says_colours(marker: int, inside: bytes) -> bool:
    """Tell the two segments of applications by which a decoder knows YCbCr from RGB, if they are long enough to be."""
    if marker == 0xE0:
        return inside.startswith(b"JFIF\0") and len(inside) >= 14
    return marker == 0xEE and inside.startswith(b"Adobe") and len(inside) >= 12


def _orientation(exifs: Iterable[bytes], xmps: Iterable[bytes]) -> int:
    for exif in exifs:
        if found := _orientation_of_exif(exif):
            return found
    for xmp in xmps:
        if found := _ORIENTATION_OF_XMP.search(xmp):
            return int(found[1])
    return 1


def _orientation_of_exif(exif: bytes) -> int | None:
    """Read the one tag, whatever the others are."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return None
    endian = "little" if order == "<" else "big"
    at = int.from_bytes(exif[4:8], endian)
    tags = int.from_bytes(exif[at : at + 2], endian)
    for entry in range(at + 2, min(at + 2 + 12 * tags, len(exif) - 11), 12):
        tag, kind, count = struct.unpack_from(f"{order}HHL", exif, entry)
        if tag == _ORIENTATION and kind in _INTEGERS and count == 1:
            value = struct.unpack_from(order + _INTEGERS[kind], exif, entry + 8)[0]
            return value if 1 <= value <= 8 else None
    return None
