"""A folder of JSON lines and images for the tests of the source `files`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from hyperparallel.data import Files, FilesConfig

SIZE = 8
"""Side of the model's images."""


def write_lines(folder: Path, lines: list, name: str = "train.jsonl") -> Path:
    """Write lines, each a dict or, as it stands, bytes."""
    path = folder / name
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


def line(*images: str, say: str = "seven", prompt: str | None = None) -> dict:
    """Make a line with a marker per image."""
    return {
        "prompt": "<image> " * len(images) + "reads" if prompt is None else prompt,
        "response": say,
        "images": images,
    }


def save(path: Path, size=(20, 10), mode="RGB", colour=None, **options) -> Path:
    """Write a picture: of one colour, or of a gradient that compresses to many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if colour is None:
        random = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
        image = Image.fromarray(random).convert(mode)
    else:
        image = Image.new(mode, size, colour)
    image.save(path, **options)
    return path


def corrupted(path: Path, change: Callable[[bytearray], bytes]) -> Path:
    """Change the bytes of a file."""
    path.write_bytes(bytes(change(bytearray(path.read_bytes()))))
    return path


def broken_files(folder: Path) -> dict[str, str]:
    """Name files that cannot be used, with what is said of each."""
    noise = {"size": (64, 48)}
    half = lambda data: data[: len(data) // 2]  # noqa: E731
    (folder / "text.png").write_text("<html>404</html>")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    corrupted(save(folder / "cut.png", **noise), half)
    corrupted(save(folder / "cut.jpg", **noise), half)
    corrupted(save(folder / "cut_progressive.jpg", progressive=True, **noise), lambda data: data[:-2])
    corrupted(save(folder / "zeros.jpg", **noise), lambda data: data[: len(data) // 2] + bytes(len(data) // 2))
    flipped = save(folder / "flipped.png", **noise)
    corrupted(flipped, lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:])
    frames = [Image.new("L", (4, 4), shade) for shade in (0, 99, 200)]
    frames[0].save(folder / "moving.png", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "moving.webp", save_all=True, append_images=frames[1:])
    tables = save(folder / "tables.jpg", **noise)  # whole from marker to marker, but a table says nonsense
    at = tables.read_bytes().index(b"\xff\xc4") + 5
    corrupted(tables, lambda data: data[:at] + b"\xff" + data[at + 1 :])
    (folder / "dangling.png").symlink_to(folder / "nowhere.png")
    save(folder / "huge.png", size=(1001, 1000), colour=(1, 2, 3))
    save(folder / "huge.jpg", size=(1001, 1000), colour=(1, 2, 3))
    return {
        "gone.png": "is missing: ",
        "gone/a.png": "is missing",
        "text.png/a.png": "is missing",
        f"{'x' * 300}.png": "is missing",
        "text.png": "not a PNG or JPEG; convert it",
        "empty.jpg": "is empty; copy or download it again",
        "folder.png": "is not a file",
        "pipe.png": "is not a file",
        "cut.png": "broken",
        "cut.jpg": "cut off|broken",
        "cut_progressive.jpg": "cut off|broken",
        "zeros.jpg": "cut off|broken",
        "flipped.png": "broken",
        "moving.png": r"animated \(3 frames\)",
        "moving.gif": "not a PNG or JPEG; convert it",
        "moving.webp": "not a PNG or JPEG; convert it",
        "tables.jpg": "broken",
        "dangling.png": "is missing",
        "huge.png": "1001 x 1000 pixels, more than max_pixels = 1000000",
        "huge.jpg": "1001 x 1000 pixels",
    }


def make(folder: Path, lines: list | None = None, tokens: int = 4, split: str = "train", **config) -> Files:
    """Write the lines, if any, and make their source: RGB, in the file's order."""
    if lines is not None:
        write_lines(folder, lines)
    settings = {"path": str(folder / "train.jsonl"), "image_size": SIZE, "max_images": 3, "shuffle": False, **config}
    return Files(FilesConfig(**settings), tokens, split)


def write_tokenizer(folder: Path, text: str | None = None) -> str:
    """Write a tokenizer.json of five words and three special tokens, which by itself adds, cuts off and pads."""
    path = folder / "tokenizer.json"
    if text is not None:
        path.write_text(text)
        return str(path)
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"[UNK]": 0, "the": 1, "cat": 2, "sat": 3, "seven": 4}
    tokenizer = Tokenizer(models.WordLevel(words | {"[PAD]": 20, "[EOS]": 21, "[IMG]": 22}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[EOS]", "[IMG]"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 21)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4, pad_id=20, pad_token="[PAD]")
    tokenizer.save(str(path))
    return str(path)
