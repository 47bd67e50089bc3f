"""Generated source as a real module: MindSpore reads the source of a `construct` from its file."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import ModuleType

_numbers = count()
_folders: list[str] = []


def import_source(
    text: str, stem: str, folder: str | Path | None = None, names: Mapping[str, object] | None = None
) -> ModuleType:
    """Write source that this package generated to a file and import it.

    Args:
        text: a Python module.
        stem: start of the file's name; a number makes it unique in this process.
        folder: where the file goes and stays, to be read by whoever debugs; default: a folder that is removed when
            Python ends.
        names: what global names mean in the source, besides what it imports.

    Returns:
        The module.
    """
    if folder is None:
        folder = tempfile.mkdtemp(prefix="hyperparallel-")
        _folders.append(folder)
    name = f"{stem}_{next(_numbers)}"
    path = Path(folder) / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"hyperparallel_{name}", path)
    assert spec is not None and spec.loader is not None, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names or {})
    sys.modules[spec.name] = module  # the compiler looks up names here
    spec.loader.exec_module(module)
    return module


@atexit.register
def remove_sources() -> None:
    """Remove the folders that nobody chose; Python calls this when it ends."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
