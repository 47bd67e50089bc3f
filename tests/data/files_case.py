"""A folder of JSON lines and images for the tests of the source `files`."""

from __future__ import annotations

import json
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
