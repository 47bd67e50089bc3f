"""Texts of random tokens in MindSpore's own format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mindspore.mindrecord import FileWriter


def write_texts(path: Path, count: int, length: int, words: int) -> None:
    """Write texts with the columns `input_ids` and `labels`, int32, (length,)."""
    rng = np.random.default_rng(0)
    writer = FileWriter(str(path), shard_num=1, overwrite=True)
    column = {"type": "int32", "shape": [length]}
    writer.add_schema({"input_ids": column, "labels": column})
    rows = rng.integers(0, words, (count, length + 1), dtype=np.int32)
    writer.write_raw_data([{"input_ids": row[:-1], "labels": row[1:]} for row in rows])
    writer.commit()
