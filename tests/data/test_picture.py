"""Only pixels and orientation of a picture matter: metadata may be odd, and what must fail, fails in the check."""

import struct
import zlib
from random import Random

import numpy as np
import pytest
from files_case import line, make
from picture_case import KINDS, SAMPLES, chunk, exif, jpeg, png
from PIL import Image

from hyperparallel.data.images import ImageRule, check_image, read_image
from hyperparallel.data.picture import take_apart
from hyperparallel.data.sample import BadSample
from hyperparallel.errors import DataError

ORIENTED = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2),
    8: np.rot90,
}
"""What is done to `(H, W, C)` so that it is upright."""


def read(path, content, channels=3, size=8):
    """Check and read a square picture of the same size as the model's; return `(H, W, C)` of 0..255."""
    path.write_bytes(content)
    check_image(path, path.name, 10**6)
    rule = ImageRule(size, channels, (0.0,), (1.0,), "stretch", 10**6)
    return read_image(path, path.name, rule).transpose(1, 2, 0) * 255


PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
BIG = bytes(3 * 2**20)
XMP = b'<rdf:Description tiff:Orientation="6" xmlns:tiff="http://ns.adobe.com/tiff/1.0/"/>'
XAP = b"http://ns.adobe.com/xap/1.0/\0"
PROFILE = b"\nexif\n      40\n" + b"\n".join([exif(6).hex().encode()[:36], exif(6).hex().encode()[36:]]) + b"\n"
ODD_TAGS = {
    "XResolution is text": [(0x011A, 2, 4, b"abc\0")],
    "ImageWidth is undefined": [(0x0100, 7, 4, b"\1\2\3\4")],
    "out of the file": [(0x010E, 2, 2**32 - 1, b"\xff\xff\xff\xff"), (0x8769, 4, 1, b"\xff\xff\xff\x7f")],
    "no such type": [(0x0101, 99, 1, b"abcd"), (0x0000, 0, 0, bytes(4))],
    "divided by nothing": [(0x011A, 5, 1, bytes(4)), (0x0128, 3, 1, b"\3\0\0\0")],
}
PNG_CHUNKS = {
    "eXIf garbage": chunk(b"eXIf", b"garbage"),
    "eXIf empty": chunk(b"eXIf", b""),
    "eXIf out of itself": chunk(b"eXIf", b"II*\0\xff\xff\xff\xff"),
    "eXIf cut": chunk(b"eXIf", exif(1)[:-20]),
    "zTXt above 1 MB": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(BIG)),
    "zTXt of an unknown method": chunk(b"zTXt", b"Comment\0\7x"),
    "zTXt XMP garbage": chunk(b"zTXt", b"XML:com.adobe.xmp\0\0garbage"),
    "tEXt of many MB": chunk(b"tEXt", b"Comment\0" + BIG) * 3,
    "tEXt raw profile garbage": chunk(b"tEXt", b"Raw profile type exif\0garbage"),
    "tEXt raw profile odd": chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 3\n49492a0"),
    "iTXt above 1 MB": chunk(b"iTXt", b"Comment\0\1\0\0\0" + zlib.compress(BIG)),
    "iTXt short": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1"),
    "iCCP above 1 MB": chunk(b"iCCP", b"icc\0\0" + zlib.compress(BIG)),
    "iCCP empty": chunk(b"iCCP", b""),
    "iCCP of an unknown method": chunk(b"iCCP", b"icc\0\1x"),
    "short ones": b"".join(chunk(kind, b"\0") for kind in (b"gAMA", b"cHRM", b"pHYs", b"sBIT", b"bKGD", b"tIME")),
    "sRGB empty": chunk(b"sRGB", b""),
    "acTL short": chunk(b"acTL", b"\0"),
    "acTL of nothing": chunk(b"acTL", bytes(8)),
    "one frame": chunk(b"acTL", b"\0\0\0\1" + bytes(4)) + chunk(b"fcTL", b"\0"),
    "unknown": chunk(b"abcD", b"x") + chunk(b"QQQQ", b"x") + chunk(b"12_4", b""),
    "palette of a picture without": chunk(b"PLTE", b"ab"),
}
JPEG_SEGMENTS = {
    "Exif garbage": (0xE1, b"Exif\0\0garbage"),
    "Exif empty": (0xE1, b"Exif\0\0"),
    "JFIF short": (0xE0, b"JFIF\0"),
    "Adobe short": (0xEE, b"Adobe"),
    "MPF garbage": (0xE2, b"MPF\0II*\0\xff\xff\xff\xff"),
    "MPF empty": (0xE2, b"MPF\0"),
    "ICC without number": (0xE2, b"ICC_PROFILE\0"),
    "Photoshop short": (0xED, b"Photoshop 3.0\x008BIM\4"),
    "resolution short": (0xED, b"Photoshop 3.0\x008BIM\3\xed\0\0\0\0\0\1x"),
    "XMP garbage": (0xE1, XAP + b"\xff\xfe"),
    "nothing": (0xE7, b""),
    "comment": (0xFE, b"\xff\xd9\xff\xd8"),
}


@pytest.mark.parametrize("chunks", PNG_CHUNKS.values(), ids=PNG_CHUNKS)
def test_odd_metadata_of_a_png_change_nothing(tmp_path, chunks):
    for place in ("before", "behind"):
        np.testing.assert_allclose(read(tmp_path / "a.png", png(PIXELS, **{place: chunks})), PIXELS, atol=1e-4)


@pytest.mark.parametrize("segment", JPEG_SEGMENTS.values(), ids=JPEG_SEGMENTS)
def test_odd_metadata_of_a_jpeg_change_nothing(tmp_path, segment):
    plain = read(tmp_path / "a.jpg", jpeg(PIXELS))
    assert np.array_equal(read(tmp_path / "a.jpg", jpeg(PIXELS, segment)), plain)
    assert np.array_equal(read(tmp_path / "a.jpg", jpeg(PIXELS, segment, (0xE1, b"Exif\0\0" + exif(1)))), plain)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", ORIENTED)
def test_every_orientation_whatever_the_other_tags_are(tmp_path, orientation, order):
    upright = ORIENTED[orientation]
    flat = read(tmp_path / "a.jpg", jpeg(PIXELS))
    for tags in [[], *ODD_TAGS.values()]:
        for told in (exif(orientation, order, before=tags), exif(orientation, order, behind=tags)):
            for content in (png(PIXELS, before=chunk(b"eXIf", told)), png(PIXELS, behind=chunk(b"eXIf", told))):
                np.testing.assert_allclose(read(tmp_path / "a.png", content), upright(PIXELS), atol=1e-4)
            content = jpeg(PIXELS, (0xE1, b"Exif\0\0" + told))
            assert np.array_equal(read(tmp_path / "b.jpg", content), upright(flat))


@pytest.mark.parametrize("told", [0, 9, 6 * 256])
def test_an_orientation_that_does_not_exist_is_none(told):
    assert take_apart(png(PIXELS, before=chunk(b"eXIf", exif(told)))).orientation == 1


def test_an_orientation_is_one_number():
    right = struct.pack("<HHL", 0x0112, 3, 1)
    for kind, count, said in ((3, 1, 6), (4, 1, 6), (2, 1, 1), (7, 1, 1), (3, 2, 1), (5, 1, 1), (99, 1, 1)):
        told = exif(6).replace(right, struct.pack("<HHL", 0x0112, kind, count))
        assert take_apart(png(PIXELS, before=chunk(b"eXIf", told))).orientation == said


@pytest.mark.parametrize(
    "content",
    [
        png(PIXELS, before=chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)),
        png(PIXELS, behind=chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0en\0x\0" + zlib.compress(BIG + XMP))),
        png(PIXELS, behind=chunk(b"eXIf", b"garbage") + chunk(b"tEXt", b"XML:com.adobe.xmp\0" + XMP)),
        png(PIXELS, before=chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(PROFILE))),
        png(PIXELS, before=chunk(b"eXIf", b"Exif\0\0" + exif(6))),
        jpeg(PIXELS, (0xE1, XAP + XMP)),
        jpeg(PIXELS, (0xE1, XAP + b"<tiff:Orientation>6</tiff:Orientation>")),
        jpeg(PIXELS, (0xE1, b"Exif\0\0garbage"), (0xE1, b"Exif\0\0" + exif(6))),
        jpeg(PIXELS, (0xE1, b"Exif\0\0" + exif(6)[:9]), (0xE1, b"Exif\0\0" + exif(6)[9:])),
        jpeg(PIXELS, (0xE1, b"Exif\0\0" + exif(6)), (0xE1, XAP + XMP.replace(b"6", b"3"))),
    ],
)
def test_where_an_orientation_may_stand(content):
    assert take_apart(content).orientation == 6


def test_what_is_left_of_a_file_has_no_metadata():
    chunks = b"".join(PNG_CHUNKS.values())
    assert take_apart(png(PIXELS, before=chunks, behind=chunks)).data == take_apart(png(PIXELS)).data
    assert take_apart(jpeg(PIXELS, *JPEG_SEGMENTS.values())).data == jpeg(PIXELS)
    for marker in (0xE0, 0xEE):  # by these two a decoder knows the colours
        segment = (marker, {0xE0: b"JFIF\0", 0xEE: b"Adobe"}[marker] + bytes(9))
        assert take_apart(jpeg(PIXELS, segment)).data == jpeg(PIXELS, segment)


@pytest.mark.parametrize("keep_rgb", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_colours_of_a_jpeg_survive(tmp_path, mode, keep_rgb):
    image = Image.new("RGB", (8, 8), (250, 100, 20)).convert(mode)
    image.save(tmp_path / "a.jpg", quality=100, keep_rgb=keep_rgb)
    wanted = np.array(image.convert("RGB"))
    np.testing.assert_allclose(read(tmp_path / "a.jpg", (tmp_path / "a.jpg").read_bytes()), wanted, atol=2)


def random_chunk(random):
    kinds = b"tEXt zTXt iTXt iCCP eXIf gAMA cHRM sRGB pHYs sBIT bKGD hIST tIME sPLT cICP fdAT fcTL caBX abCd".split()
    keys = [b"", b"Comment\0", b"XML:com.adobe.xmp\0", b"Raw profile type exif\0", b"exif\0", b"II*\0\x08\0\0\0"]
    packed = zlib.compress(random.randbytes(99)) if random.random() < 0.5 else random.randbytes(random.randrange(99))
    return chunk(random.choice(kinds), random.choice(keys) + bytes(random.randrange(5)) + packed)


def random_segment(random):
    starts = [b"", b"JFIF\0", b"JFXX\0", b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08", b"ICC_PROFILE\0", b"MPF\0II*\0"]
    starts += [b"FPXR\0", XAP, b"Photoshop 3.0\x008BIM\4\4\0\0", b"Ducky"]
    marker = random.choice([0xFE, *range(0xE1, 0xEE), 0xEF])
    return marker, random.choice(starts) + random.randbytes(random.randrange(60))


def test_pixels_are_the_same_with_any_metadata(tmp_path):
    random, plain = Random(14), read(tmp_path / "a.jpg", jpeg(PIXELS))
    for _ in range(150):
        before, behind = (b"".join(random_chunk(random) for _ in range(random.randrange(4))) for _ in range(2))
        got = read(tmp_path / "a.png", png(PIXELS, before=before, behind=behind, interlaced=random.random() < 0.3))
        np.testing.assert_allclose(got, PIXELS, atol=1e-4)
        segments = [random_segment(random) for _ in range(random.randrange(4))]
        assert np.array_equal(read(tmp_path / "a.jpg", jpeg(PIXELS, *segments)), plain)


def palette_of(depth):
    return np.random.default_rng(depth).integers(0, 256, (2**depth, 3), np.uint8)


def on_white(values_HWC, depth, colour, clear):
    """Say what a picture should look like: RGB of 0..255."""
    if colour == 3:
        alpha = np.append(clear, [255] * 256)[values_HWC] / 255
        return palette_of(depth)[values_HWC[..., 0]] * alpha + 255 * (1 - alpha)
    shown = values_HWC >> 8 if depth == 16 else values_HWC * (255 // (2**depth - 1))
    if colour in (4, 6):
        alpha = shown[..., -1:] / 255
        return np.broadcast_to(shown[..., :-1] * alpha + 255 * (1 - alpha), (*shown.shape[:2], 3))
    white = (values_HWC == clear).all(axis=-1, keepdims=True) if len(clear) else False
    return np.broadcast_to(np.where(white, 255, shown), (*shown.shape[:2], 3))


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("depth", "colour"), KINDS)
def test_values_of_every_kind_of_png_with_and_without_transparency(tmp_path, depth, colour, interlaced):
    random = np.random.default_rng([depth, colour])
    values_HWC = random.integers(0, 2**depth, (8, 8, SAMPLES[colour]))
    clear = values_HWC[3, 5]
    # Two that only differ in the last bit, above and below in the other byte too.
    values_HWC[3, 6], values_HWC[3, 7] = clear ^ 1, clear ^ (2**depth >> 1)
    palette = chunk(b"PLTE", palette_of(depth).tobytes()) if colour == 3 else b""
    cases = [(np.array([], int), b"")]
    if colour == 3:
        for alphas in ([255, 0], [0] * 2**depth, random.integers(0, 256, max(1, 2**depth - 1))):
            cases.append((np.array(alphas), chunk(b"tRNS", bytes([*alphas]))))
        cases.append((np.array([7, 200]), chunk(b"tRNS", bytes([7, 200] + [9] * 298)[: 300 if depth == 1 else 2])))
        cases.append((np.array([], int), chunk(b"tRNS", b"")))
    elif colour in (0, 2):
        told = clear.astype(">u2").tobytes()
        cases.append((clear, chunk(b"tRNS", told)))
        cases.append((clear, chunk(b"tRNS", told + b"too long")))
        if depth < 16:  # only the bits that pixels have count
            cases.append((clear, chunk(b"tRNS", (clear + (37 << depth)).astype(">u2").tobytes())))
    else:  # these have their own; a chunk more says nothing
        cases.append((clear, chunk(b"tRNS", b"\0")))
    for clear, more in cases:
        content = png(values_HWC, depth, colour, before=palette + more, interlaced=interlaced)
        expected = on_white(values_HWC, depth, colour, clear)
        # Exact, but for the rounding of what is transparent in part.
        blended = 1.01 if colour in (4, 6) or len(clear) and colour == 3 else 1e-3
        np.testing.assert_allclose(read(tmp_path / "a.png", content), expected, atol=blended)
        grey = expected @ [0.299, 0.587, 0.114]
        np.testing.assert_allclose(read(tmp_path / "a.png", content, channels=1)[..., 0], grey, atol=blended + 0.6)


def test_grey_of_16_bits_is_white_where_it_is_transparent(tmp_path):
    values_HWC = np.full((8, 8, 1), 0x1234)
    values_HWC[4:] = 0x1235
    told = chunk(b"tRNS", b"\x12\x34")
    for channels in (1, 3):
        got = read(tmp_path / "a.png", png(values_HWC, 16, 0, before=told), channels)
        np.testing.assert_allclose(got[:4], 255, atol=1e-4)
        np.testing.assert_allclose(got[4:], 0x12, atol=1e-4)
    turned = png(values_HWC, 16, 0, before=told + chunk(b"eXIf", exif(3)))
    np.testing.assert_allclose(read(tmp_path / "a.png", turned)[:4], 0x12, atol=1e-4)


IMPOSSIBLE = {
    "without a palette": png(PIXELS[..., :1], 8, 3),
    "palette behind the pixels": png(PIXELS[..., :1], 8, 3, behind=chunk(b"PLTE", b"abc")),
    "half a colour": png(PIXELS[..., :1], 8, 3, before=chunk(b"PLTE", b"abcd")),
    "two palettes": png(PIXELS[..., :1], 8, 3, before=chunk(b"PLTE", b"abc") * 2),
    "half a transparency": png(PIXELS, before=chunk(b"tRNS", b"\0\1\0\1")),
    "two headers": png(PIXELS, before=chunk(b"IHDR", bytes(13))),
    "no pixels": b"\x89PNG\r\n\x1a\n" + png(PIXELS)[8:33] + chunk(b"IEND", b""),
    "no header": b"\x89PNG\r\n\x1a\n" + chunk(b"IEND", b""),
    "no end": png(PIXELS)[:-12],
    "no size": png(PIXELS[:0]),
    "3 bits": png(PIXELS).replace(png(PIXELS)[8:33], chunk(b"IHDR", struct.pack(">LLBBBBB", 8, 8, 3, 0, 0, 0, 0))),
    "a row less": png(PIXELS, change=lambda stream: zlib.compress(zlib.decompress(stream)[:-25])),
    "a byte less": png(PIXELS, change=lambda stream: zlib.compress(zlib.decompress(stream)[:-1])),
    "half a stream": png(PIXELS, change=lambda stream: stream[: len(stream) // 2]),
    "half an interlaced stream": png(PIXELS, interlaced=True, change=lambda stream: stream[: len(stream) // 2]),
    "no such filter": png(PIXELS, change=lambda stream: zlib.compress(b"\5" + zlib.decompress(stream)[1:])),
    "no such filter in the last row": png(
        PIXELS, change=lambda stream: zlib.compress(zlib.decompress(stream)[:-25] + b"\xff" + bytes(24))
    ),
    "wrong sum of the stream": png(PIXELS, change=lambda stream: stream[:-1] + bytes([stream[-1] ^ 1])),
    "wrong sum of a text": png(PIXELS, before=chunk(b"tEXt", b"a\0b")[:-1] + b"x"),
}


@pytest.mark.parametrize("content", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_must_fail_fails_in_the_check(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BadSample, match="^image 'a.png' is broken .*; replace it$"):
        check_image(tmp_path / "a.png", "a.png", 10**6)


def test_every_cut_is_found(tmp_path):
    for content in (png(PIXELS), png(PIXELS, interlaced=True), jpeg(PIXELS)):
        for length in range(0, len(content), 5):
            (tmp_path / "a").write_bytes(content[:length])
            with pytest.raises(BadSample):
                check_image(tmp_path / "a", "a", 10**6)


def damaged_stream(random):
    def change(stream):
        data, at = bytearray(stream), random.randrange(len(stream))
        kind = random.choice(["flip", "cut", "rows", "rows"])
        if kind == "flip":
            data[at] ^= 1 << random.randrange(8)
            return bytes(data)
        if kind == "cut":
            return bytes(data[:at])
        rows = bytearray(zlib.decompress(stream))
        at = random.randrange(len(rows))
        rows[at : at + random.choice([0, 1])] = random.randbytes(random.choice([0, 0, 1, 9]))
        return zlib.compress(rows)

    return change


def test_streams_that_are_damaged_under_a_right_check_sum_fail_in_the_check_or_never(tmp_path):
    random, seen = Random(0), {True: 0, False: 0}
    for number in range(700):
        depth, colour = KINDS[number % len(KINDS)]
        values_HWC = np.array(random.choices(range(2**depth), k=64 * SAMPLES[colour])).reshape(8, 8, -1)
        length = random.choice([3 * 2**depth, 3, 30, 768, 1]) if colour == 3 else 0
        before = chunk(b"PLTE", random.randbytes(length)) if length else b""
        before += (
            chunk(b"tRNS", random.randbytes(random.choice([0, 1, 2, 6, 256, 300]))) if random.random() < 0.3 else b""
        )
        change = damaged_stream(random) if random.random() < 0.7 else lambda stream: stream
        content = png(values_HWC, depth, colour, before, interlaced=random.random() < 0.3, change=change)
        try:
            (tmp_path / "a.png").write_bytes(content)
            check_image(tmp_path / "a.png", "a.png", 10**6)
        except BadSample:
            seen[False] += 1
            continue
        seen[True] += 1
        assert read(tmp_path / "a.png", content, channels=random.choice([1, 3])).shape[:2] == (8, 8)
    assert min(seen.values()) > 200


def test_a_stream_that_goes_on_is_not_inflated_to_its_end(tmp_path, monkeypatch):
    content = png(PIXELS, change=lambda stream: zlib.compress(zlib.decompress(stream) + bytes(2**26)))
    inflated, make_inflater = [], zlib.decompressobj

    class Watched:
        def __init__(self):
            self.inner = make_inflater()

        def decompress(self, *args):
            inflated.append(self.inner.decompress(*args))
            return inflated[-1]

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr("hyperparallel.data.picture.zlib.decompressobj", Watched)
    np.testing.assert_allclose(read(tmp_path / "a.png", content), PIXELS, atol=1e-4)
    assert sum(map(len, inflated)) <= 2**20


def test_odd_pictures_do_not_end_a_job_that_skips(tmp_path):
    odd = {f"a{number}.png": png(PIXELS, before=chunks) for number, chunks in enumerate(PNG_CHUNKS.values())}
    odd |= {f"b{number}.png": png(PIXELS, behind=chunks) for number, chunks in enumerate(PNG_CHUNKS.values())}
    odd |= {f"c{number}.jpg": jpeg(PIXELS, segment) for number, segment in enumerate(JPEG_SEGMENTS.values())}
    bad = {f"d{number}.png": content for number, content in enumerate(IMPOSSIBLE.values())}
    for name, content in (odd | bad).items():
        (tmp_path / name).write_bytes(content)
    source = make(tmp_path, [line(name) for name in (*odd, *bad)], on_error="skip")
    for index in range(len(source)):
        assert source.sample(index).images.shape == (1, 3, 8, 8)
    assert len(source.skipped) == len(bad)
    assert list(source.skipped) == [f"train.jsonl, line {len(odd) + number + 1}" for number in range(len(bad))]


def test_a_machine_without_memory_is_not_blamed_on_the_picture(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    path = tmp_path / "a.png"
    path.write_bytes(png(PIXELS))
    monkeypatch.setattr("PIL.Image.open", fail)
    with pytest.raises(DataError, match="'a.png': there is not enough memory .* lower max_pixels = 1000") as error:
        check_image(path, "a.png", 1000)
    assert not isinstance(error.value, BadSample)
