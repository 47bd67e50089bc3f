"""A configuration that trains in seconds, and the search for processes that a job left behind."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

LINES = """\
schedule: "transpose(vision) >> 1f1b(llm)"
parallel:
  ranks: 2
model:
  image_token: 3
  vision:
    width: 16
    depth: 1
    heads: 2
    ffn: 32
  llm:
    vocab_size: 16
    width: 24
    depth: 1
    heads: 4
    kv_heads: 2
    ffn: 32
    max_length: 8
data:
  max_images: 1
training:
  steps: 3
  batch_size: 8
  micro_batches: 2
  warmup_steps: 1
"""

FILES = """\
data:
  source: files
  path: {folder}/train.jsonl
  image_size: 8
  channels: 1
  max_images: 1
"""
"""Section `data` of a job on files of a folder."""


def write_config(folder: Path, text: str = LINES) -> Path:
    """Write a configuration whose runs go into the same folder."""
    path = folder / "tiny.yaml"
    path.write_text(f"{text}run:\n  out: {folder / 'runs'}\n")
    return path


def processes_of(path: Path, patience: float = 10.0) -> list[str]:
    """List processes that were started with a path on their command line, once those that are ending have ended."""
    end = time.monotonic() + patience
    while (found := _processes_of(path)) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _processes_of(path: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = process.info["cmdline"] or []
        if any(str(path) in word for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{process.info['pid']}: {' '.join(words)}")
    return found
