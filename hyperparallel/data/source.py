"""Which source a configuration names, and the source itself."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from hyperparallel.data.digits import Digits, DigitsConfig, Split
from hyperparallel.data.files import Files, FilesConfig

_SOURCES = {DigitsConfig: Digits, FilesConfig: Files}


def _name_of(values: Any) -> str:
    """Read which source is meant; the digits where nothing is said."""
    source = values.get("source", "digits") if isinstance(values, dict) else getattr(values, "source", "digits")
    return str(source)


DataConfig = Annotated[
    Annotated[DigitsConfig, Tag("digits")] | Annotated[FilesConfig, Tag("files")],
    Discriminator(_name_of),
]
"""Any source's configuration, told apart by its key `source`. All have `image_size`, `channels`, `max_images` and
`longest(tokens_per_image)`."""


def make_source(config: DigitsConfig | FilesConfig, tokens_per_image: int, split: Split = "train") -> Digits | Files:
    """Make the source that a configuration describes.

    Args:
        config: one of `DataConfig`.
        tokens_per_image: tokens that the model makes of one image, >= 1.
        split: `train` or `held_out`.

    Raises:
        DataError: files are missing, or a value does not fit.

    Returns:
        The source; besides samples it gives `vocabulary_size` and `image_id`, which the model must fit.
    """
    return _SOURCES[type(config)](config, tokens_per_image, split)
