"""MindFormers' data loader over HyperParallel's sources: each row is one text with its images.

Shapes: I images that every row has room for, C channels, H, W pixels, S tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from pydantic import TypeAdapter, ValidationError

from hyperparallel.data import DataConfig, make_source
from hyperparallel.data.collate import Room, collate
from hyperparallel.data.sample import Source
from hyperparallel.errors import ConfigError

COLUMNS = ("input_ids", "labels", "pixel_values")


class Rows:
    """Samples as rows of fixed shapes, by number.

    Args:
        source: where they come from.
        count: how many there are.
        columns: any of `COLUMNS`, in the order of a row.
        room: images and tokens of a row.
    """

    def __init__(self, source: Source, count: int, columns: Sequence[str], room: Room) -> None:
        for column in columns:
            if column not in COLUMNS:
                raise ConfigError(
                    f"train_dataset.input_columns names {column!r}; MultimodalDataLoader has {', '.join(COLUMNS)}"
                )
        self.source, self.count, self.columns, self.room = source, count, list(columns), room

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        """Make row `index`: `input_ids` (S,), `labels` (S,), `pixel_values` (I, C, H, W)."""
        sample = self.source.sample(int(index), pixels="pixel_values" in self.columns)
        made = collate([sample], self.columns, room=self.room)
        return tuple(made[name] if name == "pixel_values" else made[name][0] for name in self.columns)


@MindFormerRegister.register(MindFormerModuleType.DATASET_LOADER)
class MultimodalDataLoader:
    """Serve texts with images to MindFormers' datasets.

    In a YAML, under `train_dataset.data_loader`:

        type: MultimodalDataLoader
        source: {source: digits, max_images: 3}     # or {source: files, path: ...}
        samples: 1000             # rows of an epoch; a source with an end may leave it out
        tokens_per_image: 4       # placeholders of an image; the encoder's (image_size / patch_size / merge)^2
        max_tokens: 32            # S
        max_images: 3             # I; default: the source's

    Returns:
        A data set of MindSpore with the columns that `train_dataset.input_columns` names. Every row has the same
        shapes: I images, blank ones after its own, and S tokens.
    """

    def __new__(
        cls,
        source: dict,
        max_tokens: int,
        tokens_per_image: int = 1,
        samples: int | None = None,
        max_images: int | None = None,
        split: str = "train",
        column_names: Sequence[str] = COLUMNS,
        replicas: int | None = None,
        replica: int | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
        **_,
    ) -> ds.GeneratorDataset:
        config, made = read_source(source, tokens_per_image, split)
        count = samples or (len(made) if hasattr(made, "__len__") else None)
        if count is None:
            raise ConfigError("data_loader.samples is missing; this source has no end, say how many make an epoch")
        # MindFormers shares texts out over all workers outside of its parallel modes; `replica` says what is right.
        room = Room(max(1, config.max_images if max_images is None else max_images), max_tokens)
        return ds.GeneratorDataset(
            Rows(made, count, column_names or COLUMNS, room),
            list(column_names or COLUMNS),
            shuffle=False,
            num_shards=num_shards if replicas is None else replicas,
            shard_id=shard_id if replicas is None else replica,
            num_parallel_workers=1,
            python_multiprocessing=False,
        )


def read_source(values: Mapping[str, Any], tokens_per_image: int, split: str) -> tuple[DataConfig, Source]:
    """Make the source that `data_loader.source` describes.

    Args:
        values: as under `data:` of HyperParallel's own jobs (docs/data.md).
        tokens_per_image: placeholders of an image.
        split: `train` or `held_out`.

    Raises:
        ConfigError: it does not fit; says what does.
        DataError: a file is missing or wrong.
    """
    try:
        config = TypeAdapter(DataConfig).validate_python({"source": "digits", **values})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"][1:])
        raise ConfigError(f"data_loader.source.{where} = {problem['input']!r}: {problem['msg']}") from None
    return config, make_source(config, tokens_per_image, split)
