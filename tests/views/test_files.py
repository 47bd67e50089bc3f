"""Files are written whole, all or none, and only onto regular files."""

import os

import pytest

from hyperparallel.errors import HyperParallelError
from hyperparallel.views.files import write_files


def test_new_files_and_old_ones(tmp_path):
    (tmp_path / "old").write_text("before")
    write_files({tmp_path / "old": b"after", str(tmp_path / "new"): b"x"})
    assert (tmp_path / "old").read_bytes() == b"after" and (tmp_path / "new").read_bytes() == b"x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


@pytest.fixture
def bad(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "it is a folder"),
        ("pipe", "it is not a regular file"),
        ("link", "it is not a regular file"),
        ("absent/x", "No such file or directory"),
        ("file/x", "Not a directory"),
        ("n\0ul", "it is no file name"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_leaves_everything_as_it_was(bad, name, reason):
    before = sorted(bad.iterdir())
    with pytest.raises(HyperParallelError) as caught:
        write_files({bad / "first": b"1", f"{bad}/{name}": b"2"})
    assert f"cannot be written ({reason}); give another path" in str(caught.value)
    assert sorted(bad.iterdir()) == before and (bad / "file").read_text() == "kept"
    assert (bad / "pipe").is_fifo() and (bad / "link").is_symlink()
