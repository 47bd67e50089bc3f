"""Generated source is a module with a file to read; files that nobody asked for are removed."""

import inspect
from pathlib import Path

from hyperparallel.cells.source_file import import_source, remove_sources

TEXT = "def double(x):\n    return x * FACTOR\n"


def test_a_module_with_names_and_source(tmp_path):
    first = import_source(TEXT, "double", tmp_path / "new", {"FACTOR": 2})
    second = import_source(TEXT, "double", tmp_path / "new", {"FACTOR": 3})
    assert (first.double(7), second.double(7)) == (14, 21)
    assert inspect.getsource(first.double) == TEXT and first.__file__ != second.__file__


def test_only_what_nobody_chose_is_removed(tmp_path):
    chosen, other = import_source(TEXT, "double", tmp_path), import_source(TEXT, "double")
    folder = Path(other.__file__).parent
    assert folder != tmp_path and folder.is_dir()
    remove_sources()
    assert not folder.exists() and Path(chosen.__file__).exists()
    remove_sources()  # nothing is left
