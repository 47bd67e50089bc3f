"""Generated source as a real module: MindSpore reads the source of a `construct` from its file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path


def import_class(text: str, name: str, folder: Path | None = None) -> type:
    """Write source to a file and import a class from it.

    Args:
        text: a Python module that this package generated.
        name: of the class in it.
        folder: where the file goes and stays, to be read by whoever debugs; default: a temporary folder of the user.

    Returns:
        The class. The same text gives the same file.
    """
    folder = folder or Path(tempfile.mkdtemp(prefix="hyperparallel-"))
    folder.mkdir(parents=True, exist_ok=True)
    module_name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = folder / f"{module_name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"hyperparallel_generated.{module_name}", path)
    assert spec is not None and spec.loader is not None, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the compiler looks the class's module up
    spec.loader.exec_module(module)
    return getattr(module, name)
