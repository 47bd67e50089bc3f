"""The words of the digits task: 16 of them, with ids that never change."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hyperparallel.errors import DataError

WORDS = (
    *("<pad>", "<bos>", "<eos>", "<image>", "reads", "nothing"),
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
)
IDS = {word: number for number, word in enumerate(WORDS)}
VOCABULARY_SIZE = len(WORDS)

PAD = IDS["<pad>"]
BOS = IDS["<bos>"]
EOS = IDS["<eos>"]
IMAGE = IDS["<image>"]
"""Placeholder: the position where one feature of an image is put in."""
READS = IDS["reads"]
NOTHING = IDS["nothing"]
ZERO = IDS["zero"]
"""Id of digit 0; digit d has id ZERO + d."""


def encode(text: str) -> list[int]:
    """Turn words into ids.

    Args:
        text: words of `WORDS` separated by white space.

    Returns:
        One id, 0..15, per word.

    Raises:
        DataError: a word that is not in the vocabulary.

    >>> encode("<bos> <image> reads seven <eos>")
    [1, 3, 4, 13, 2]
    """
    ids = []
    for place, word in enumerate(text.split()):
        if word not in IDS:
            near = difflib.get_close_matches(word, WORDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the words are: {' '.join(WORDS)}"
            raise DataError(f"word {place} of {text!r} is {word!r}, which is not in the vocabulary; {hint}")
        ids.append(IDS[word])
    return ids


def decode(ids: Iterable[int]) -> str:
    """Turn ids back into words, padding included.

    Args:
        ids: token ids, 0..15.

    Returns:
        The words, separated by one space.

    Raises:
        DataError: an id outside the vocabulary.

    >>> decode([1, 4, 5, 2, 0])
    '<bos> reads nothing <eos> <pad>'
    """
    words = []
    for place, number in enumerate(ids):
        if not 0 <= number < VOCABULARY_SIZE:
            raise DataError(f"id {place} is {number}; the vocabulary has ids 0..{VOCABULARY_SIZE - 1}")
        words.append(WORDS[number])
    return " ".join(words)
