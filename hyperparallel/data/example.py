"""Write a small folder of JSON lines with images: `python -m hyperparallel.data.example OUT`.

To try the source `files`: the bundled digits as PNG and JPEG files of many sizes, with the texts of the digits task.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from hyperparallel.data.digits import MEAN, STD, Digits, DigitsConfig, Split
from hyperparallel.data.sample import IGNORE
from hyperparallel.data.vocabulary import decode
from hyperparallel.errors import DataError, HyperParallelError
from hyperparallel.paths import print_any_path

MODES = ("L", "RGB", "RGBA", "P")


def write_example(folder: Path, train: int = 2000, held_out: int = 256, max_images: int = 3) -> None:
    """Write `train.jsonl`, `held_out.jsonl` and the folder `images`, with the same content each time.

    Args:
        folder: made if it is missing; files of these names in it are replaced.
        train: lines to train on.
        held_out: lines to evaluate on; their digits are in none of the others.
        max_images: images of a line, from 0 to this many.

    Raises:
        DataError: the folder cannot be written.
    """
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
        _write_lines(folder, "train", train, max_images)
        _write_lines(folder, "held_out", held_out, max_images)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror}); give another folder") from None


def _write_lines(folder: Path, split: Split, count: int, max_images: int) -> None:
    digits = Digits(DigitsConfig(max_images=max_images), tokens_per_image=1, split=split)
    with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            sample = digits.sample(number)
            names = [f"images/{split}_{number}_{place}" for place in range(sample.image_count)]
            rng = np.random.default_rng([number, digits.split == "train"])
            images = [_write_image(folder, *pair, rng) for pair in zip(names, sample.images, strict=True)]
            spoken = decode(sample.labels[sample.labels != IGNORE]).removesuffix(" <eos>")
            line = {"prompt": "<image> " * len(images) + "reads", "response": spoken, "images": images}
            file.write(json.dumps(line) + "\n")


def _write_image(folder: Path, name: str, digit_1SS: np.ndarray, rng: np.random.Generator) -> str:
    from PIL import Image

    grey = np.clip((digit_1SS[0] * STD + MEAN) * 255, 0, 255).astype(np.uint8)
    size = tuple(int(side) for side in rng.integers(24, 57, size=2))
    mode = MODES[rng.integers(len(MODES))]
    image = Image.fromarray(grey).resize(size, Image.Resampling.BICUBIC).convert(mode)
    name += ".jpg" if mode in ("L", "RGB") and rng.integers(2) else ".png"
    image.save(folder / name)
    return name


def main() -> int:
    """Write the folder named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hyperparallel.data.example", description=__doc__)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write")
    parser.add_argument("--lines", type=int, default=2000, help="lines to train on (default 2000)")
    args = parser.parse_args()
    print_any_path()
    try:
        write_example(args.out, args.lines)
    except HyperParallelError as error:
        print(f"hyperparallel: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: train.jsonl, held_out.jsonl, images/ with {sum(1 for _ in args.out.glob('images/*'))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
