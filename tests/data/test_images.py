"""Pictures of every kind become squares; broken ones are found cheaply."""

import re
from io import BytesIO
from random import Random

import numpy as np
import pytest
from files_case import broken_files, corrupted, save
from PIL import Image, ImageFile

from hyperparallel.data.images import ImageRule, check_image, image_path, read_image
from hyperparallel.data.sample import BadSample
from hyperparallel.errors import DataError


def rule(size=8, channels=3, mean=(0.0,), std=(1.0,), resize="stretch", max_pixels=10**6):
    return ImageRule(size, channels, mean, std, resize, max_pixels)


def read(path, **kwargs):
    return read_image(path, path.name, rule(**kwargs))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (1, 1), (300, 7), (33, 210)])
@pytest.mark.parametrize(
    ("suffix", "mode"),
    [("png", "RGB"), ("png", "L"), ("png", "P"), ("png", "RGBA"), ("png", "LA"), ("png", "1"), ("png", "I;16")]
    + [("jpg", "RGB"), ("jpg", "L"), ("jpg", "CMYK")],
)
def test_every_kind_of_picture_becomes_a_square_of_its_colour(tmp_path, suffix, mode, size, channels):
    values = {"RGB": (51, 51, 51), "RGBA": (51, 51, 51, 255), "LA": (51, 255), "1": 1, "CMYK": (0, 0, 0, 204)}
    expected = {"1": 255, "I;16": 51.5}.get(mode, 51)
    colour = {"I;16": 51 * 257 + 3, **values}.get(mode, 51)
    image = Image.new(mode, size, colour)
    if mode == "P":
        image = Image.new("RGB", size, (51, 51, 51)).convert("P", palette=Image.Palette.ADAPTIVE)
    path = tmp_path / f"a.{suffix}"
    image.save(path)
    check_image(path, "a", 10**6)
    for resize in ("stretch", "pad"):
        got = read(path, channels=channels, resize=resize, size=max(8, *size))
        assert got.shape == (channels, max(8, *size), max(8, *size)) and got.dtype == np.float32
        inside = got[got > 0]
        np.testing.assert_allclose(inside, expected / 255, atol=2.5 / 255)
        assert len(inside) == (got.size if resize == "stretch" else len(inside)) > 0


def test_pad_keeps_proportions_and_fills_with_the_mean(tmp_path):
    path = save(tmp_path / "a.png", size=(40, 20), colour=(255, 0, 0))
    got = read(path, resize="pad", mean=(0.5, 0.25, 0.75), std=(0.5, 0.25, 0.25))
    assert (got[:, :2] == 0).all() and (got[:, 6:] == 0).all()
    np.testing.assert_allclose(got[:, 2:6], np.broadcast_to(np.array([1, -1, -3])[:, None, None], (3, 4, 8)), atol=1e-5)


def test_shrinking_averages(tmp_path):
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "a.png")
    np.testing.assert_allclose(read(tmp_path / "a.png", channels=1), 0.5, atol=0.05)


def test_transparent_is_white(tmp_path):
    Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save(tmp_path / "a.png")
    np.testing.assert_allclose(read(tmp_path / "a.png"), 1.0)
    Image.new("L", (4, 4), 7).save(tmp_path / "b.png", transparency=7)
    np.testing.assert_allclose(read(tmp_path / "b.png", channels=1), 1.0)


def test_a_photo_is_turned_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4] = 255  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter, clockwise
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif, quality=95)
    got = read(tmp_path / "a.jpg", channels=1)[0]
    assert got[:3].min() > 0.9 and got[5:].max() < 0.1


def test_what_cannot_be_used_is_found_and_named(tmp_path):
    for name, said in broken_files(tmp_path).items():
        with pytest.raises(BadSample, match=said) as error:
            check_image(tmp_path / name, name, 10**6)
        assert repr(name) in str(error.value)
        # What is cut may decode in part; the check is the one that tells.
        if not re.search("cut|zeros", name):
            with pytest.raises(BadSample, match=said):
                read_image(tmp_path / name, name, rule())


def test_more_pixels_than_pillow_allows(tmp_path, monkeypatch):
    save(tmp_path / "bomb.png", size=(400, 100), colour=(1, 2, 3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(BadSample, match="'bomb.png' has far more pixels than max_pixels = 1000; make it smaller"):
        check_image(tmp_path / "bomb.png", "bomb.png", 1000)


def test_more_bytes_than_a_picture_can_need(tmp_path):
    path = save(tmp_path / "a.jpg")
    with path.open("ab") as file:
        file.truncate(2**25)  # a hole: takes no place on the disk
    check_image(path, "a.jpg", 10**7)
    with pytest.raises(BadSample, match=r"'a\.jpg' has 33554432 bytes, more than a picture of max_pixels = 1000 can"):
        check_image(path, "a.jpg", 1000)


def damaged(random, content):
    """Damage a file in one of the ways of disks and networks."""
    data, at = bytearray(content), random.randrange(len(content))
    kind = random.choice(["flip", "noise", "cut", "zeros", "lost", "twice"])
    if kind == "flip":
        data[at] ^= 1 << random.randrange(8)
    elif kind == "noise":
        for _ in range(20):
            data[random.randrange(len(data))] = random.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        end = min(len(data), at + random.choice([16, 512, 4096]))
        data[at:end] = bytes(end - at)
    elif kind == "lost":
        del data[at : at + random.choice([1, 16, 512])]
    else:
        data[at:at] = data[at : at + 64]
    return data


@pytest.mark.filterwarnings("ignore")  # Pillow's, about the tags of cameras
@pytest.mark.parametrize(
    ("suffix", "options"),
    [("png", {}), ("jpg", {}), ("jpg", {"progressive": True}), ("jpg", {"restart_marker_rows": 1})],
)
def test_what_passes_the_check_can_be_decoded(tmp_path, suffix, options):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture" * 9
    content = save(tmp_path / f"a.{suffix}", size=(64, 48), exif=exif, **options).read_bytes()
    random, path, passed = Random(suffix), tmp_path / f"b.{suffix}", 0
    for _ in range(300):
        path.write_bytes(damaged(random, content))
        try:
            check_image(path, path.name, 10**6)
        except BadSample:
            continue
        passed += 1
        assert read(path).shape == (3, 8, 8)
    # Of a JPEG much passes: it has no check sums, and decodes to a picture with a scratch.
    assert passed < 250 and (passed > 100 or suffix == "png")


def test_whole_files_pass_the_check(tmp_path):
    save(tmp_path / "a.jpg", size=(64, 48), progressive=True)
    save(tmp_path / "b.jpg", size=(64, 48), restart_marker_rows=1)
    thumbnail = BytesIO()
    Image.new("RGB", (16, 16)).save(thumbnail, "JPEG")
    comment = b"EXIF" + thumbnail.getvalue()  # with an end-of-image marker of its own
    save(tmp_path / "c.jpg", size=(64, 48), comment=comment)
    corrupted(save(tmp_path / "d.jpg", size=(64, 48)), lambda data: data + b"what a camera appends")
    other = Image.new("RGB", (8, 8), (9, 9, 9))
    Image.new("RGB", (64, 48), (1, 2, 3)).save(tmp_path / "e.jpg", "MPO", save_all=True, append_images=[other])
    for path in sorted(tmp_path.iterdir()):
        check_image(path, path.name, 10**6)
        read(path)
    np.testing.assert_allclose(read(tmp_path / "e.jpg")[:, 0, 0], np.array([1, 2, 3]) / 255, atol=0.01)
    corrupted(tmp_path / "c.jpg", lambda data: data[:-100])
    with pytest.raises(BadSample, match="cut off"):
        check_image(tmp_path / "c.jpg", "c.jpg", 10**6)


def test_the_check_decodes_little(tmp_path, monkeypatch):
    decoded, load = [], ImageFile.ImageFile.load

    def watched(image):
        decoded.append(image.size)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", watched)
    for path in (save(tmp_path / "a.png", size=(640, 480)), save(tmp_path / "a.jpg", size=(640, 480))):
        check_image(path, path.name, 10**6)
    assert set(decoded) == {(80, 60)}  # the JPEG, at an eighth


def test_trouble_of_the_machine_is_not_blamed_on_the_sample(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png")

    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("PIL.Image.open", fail)
    with pytest.raises(
        DataError, match=r"a\.png cannot be read \(Input/output error\); see to its rights and its disk"
    ) as error:
        check_image(path, "a.png", 10**6)
    assert not isinstance(error.value, BadSample)


@pytest.mark.parametrize("name", ["../a.png", "/etc/a.png", "b/../../a.png", "", "b\0.png"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(BadSample, match="not inside the image folder"):
        image_path(tmp_path, name)


def test_names_inside_the_folder(tmp_path):
    for name in ("a.png", "b/c d.png", "ü/ß.jpg", "./a.png", "a..b.png", "10\u202fPM.png"):
        assert image_path(tmp_path, name) == tmp_path / name
