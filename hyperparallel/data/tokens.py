"""Turn text into ids: the built-in words, or a Hugging Face `tokenizer.json`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from hyperparallel.data import vocabulary
from hyperparallel.errors import DataError
from hyperparallel.limits import MAX_VOCABULARY
from hyperparallel.schema import Strict

WORDS = "words"
"""Name of the built-in tokenizer."""

_Token = Annotated[int, Field(ge=0, lt=MAX_VOCABULARY)] | str


class TokenNames(Strict):
    """Name the tokens that are put in by the data source; each by its text in the tokenizer, or by its id.

    Args:
        pad: fills texts up to one length.
        bos: begins a text; none with `null`.
        eos: ends a text, and is predicted.
        image: the placeholder; there are `tokens_per_image` of them for an image. It must differ from the others, which
            need not differ from each other: tokenizers with one special token use it for all three.
    """

    pad: _Token = "<pad>"
    bos: _Token | None = "<bos>"
    eos: _Token = "<eos>"
    image: _Token = "<image>"


def check_different(tokens: Mapping[str, str | int | None]) -> None:
    """Refuse special tokens that would be misread: an empty name, or an image token that is another one too.

    Args:
        tokens: by role, as `TokenNames` has them: all as they were named, or all as ids.

    Raises:
        DataError: names the keys.
    """
    for role, token in tokens.items():
        if token == "":
            raise DataError(f"tokens.{role} is empty; give the token's text or its id")
    for role, token in tokens.items():
        if role != "image" and token is not None and token == tokens["image"]:
            raise DataError(
                f"tokens.{role} and tokens.image are both {token!r}, but an image token stands for nothing else; give "
                "tokens.image one of its own"
            )


@dataclass(frozen=True)
class Tokens:
    """Hold a tokenizer with the ids of its special tokens.

    Args:
        encode: from text to ids, none added.
        size: one more than the largest id.
        pad, bos, eos, image: ids as `TokenNames` says; `image` is None if it is unknown and not needed.
    """

    encode: Callable[[str], list[int]]
    size: int
    pad: int
    bos: int | None
    eos: int
    image: int | None


def load_tokens(tokenizer: str, names: TokenNames, images: bool = True) -> Tokens:
    """Load a tokenizer.

    Args:
        tokenizer: `words`, or the path of a `tokenizer.json`.
        names: its special tokens.
        images: False lets the image token be missing.

    Raises:
        DataError: the file cannot be read, the library is missing, or the tokenizer does not have a token.

    >>> load_tokens("words", TokenNames()).encode("reads seven")
    [4, 13]
    """
    if tokenizer == WORDS:
        encode, find, known = vocabulary.encode, vocabulary.IDS.get, list(vocabulary.WORDS)
        size = vocabulary.VOCABULARY_SIZE
    else:
        encode, find, known, size = _from_file(tokenizer)
    ids: dict[str, int | None] = {}
    for role, name in names:
        ids[role] = name if name is None or isinstance(name, int) else find(name)
        if ids[role] is None and name is not None and (images or role != "image"):
            none = " (null for none)" if role == "bos" else ""
            raise DataError(
                f"tokens.{role} is {name!r}, which tokenizer {tokenizer!r} does not have; set it to a token{none}: "
                f"one of {' '.join(known[:12]) or 'its vocabulary'}"
            )
    check_different(ids)
    size = max(size, 1 + max(number for number in ids.values() if number is not None))
    return Tokens(encode, size, **ids)


def _from_file(path: str) -> tuple[Callable[[str], list[int]], Callable[[str], int | None], list[str], int]:
    """Read a tokenizer.json; return its encoder, its look-up, its special tokens and its size."""
    if not os.path.isfile(path):
        raise DataError(f"tokenizer = {path!r} is not a file; give {WORDS!r} or the path of a tokenizer.json")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DataError(
            f"tokenizer = {path!r} needs the library tokenizers; pip install 'hyperparallel[files]'"
        ) from None
    try:
        loaded = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing more special
        raise DataError(f"tokenizer = {path!r} is not a tokenizer.json of Hugging Face ({str(error)[:200]})") from None
    loaded.no_truncation()
    loaded.no_padding()
    special = [token.content for token in loaded.get_added_tokens_decoder().values()]
    size = 1 + max(loaded.get_vocab(with_added_tokens=True).values(), default=0)

    def encode(text: str) -> list[int]:
        return loaded.encode(text, add_special_tokens=False).ids

    return encode, loaded.token_to_id, special, size
