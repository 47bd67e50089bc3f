"""Generate stub libraries that let MindSpore's own Ascend plug-in be loaded on a machine without Ascend.

The plug-in cannot be loaded on an ordinary machine only because the dynamic linker does not find the vendor's
libraries it is linked against. One small library in which every function it needs is present and returns 0 is
enough for MindSpore's dry-run switch, MS_SIMULATION_LEVEL, at levels 0 and 1: nothing is computed, and nothing
here talks to a network.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from pathlib import Path

from hyperparallel.dryrun.assembler import REAL_SOURCE, REAL_SYMBOLS, assembler_source
from hyperparallel.dryrun.wheel import Wheel, find_wheel, output_of, tool
from hyperparallel.errors import DryRunError
from hyperparallel.io import parse_json

FORMAT = "2"  # change whenever what is generated changes

# MindSpore derives the "Ascend home" from the path that libascendcl.so was loaded from and insists on a folder
# named lib64 in it, hence this layout.
HOME = "latest"
LIBRARIES = f"{HOME}/lib64"
PYTHON = "python"

_MAIN = "libascendcl.so"
_STAMP, _LOCK = "stamp.json", "lock"
# Linked against by the plug-in of some releases, opened with dlopen() by that of others. A name too many does
# no harm, so these are always there besides those found in the wheel.
_ALWAYS = (_MAIN, "libge_runner.so", "libgraph.so", "libhccl.so", "libruntime.so", "libopapi.so")
# What mindspore looks up by name at run time (dlsym) appears as a string in its libraries. Operators' functions
# come in pairs, the second name being built at run time.
# (A look-behind for the start of the name would make the search more than twice as slow.)
_LOOKED_UP = re.compile(rb"(?:acl|Hccl|Hcom)[A-Za-z0-9_]{2,80}\0")
_PAIRED = ("aclnn", "GetWorkspaceSize")


def default_folder() -> Path:
    """Name the folder of the stubs: $HYPERPARALLEL_DRYRUN_DIR, else ~/.cache/hyperparallel/dryrun."""
    chosen = os.environ.get("HYPERPARALLEL_DRYRUN_DIR")
    return Path(chosen) if chosen else Path.home() / ".cache" / "hyperparallel" / "dryrun"


def build(folder: Path | str | None = None, python: str = sys.executable, *, force: bool = False) -> Wheel:
    """Generate the stubs below a folder unless they are there already.

    The first call takes about 5 seconds, a later one 0.1. Processes that build into the same folder at the same
    time wait for the first; a build that was interrupted is done again.

    Args:
        folder: where to put them; None for `default_folder()`. It must be empty or made by this function.
        python: the interpreter that has mindspore.
        force: generate even if they are up to date.

    Raises:
        DryRunError: the folder holds something else; mindspore, its plug-in, a compiler, binutils or an ordinary
            system library is missing.

    Returns:
        The wheel that the stubs fit.
    """
    folder = Path(folder or default_folder()).absolute()
    wheel = find_wheel(python)
    fingerprint = wheel.fingerprint(FORMAT, os.environ.get("CXX", ""))
    stamp = folder / _STAMP
    if folder.is_dir() and not stamp.exists() and {path.name for path in folder.iterdir()} - {_LOCK}:
        raise DryRunError(f"{folder} is not empty and holds no stubs; choose another folder for them")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / _LOCK, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if force or _stamped(stamp) != fingerprint:
            stamp.write_text("{}\n", encoding="utf-8")  # an interrupted build must not look finished
            facts = _generate(folder, wheel)
            stamp.write_text(json.dumps({"fingerprint": fingerprint, **facts}, indent=1) + "\n", encoding="utf-8")
    return wheel


def _stamped(stamp: Path) -> str | None:
    try:
        content = parse_json(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("fingerprint") if isinstance(content, dict) else None


def _generate(folder: Path, wheel: Wheel) -> dict:
    """Write everything below the folder; return what is worth noting about it."""
    compiler = tool(os.environ.get("CXX", ""), "g++", "c++", "clang++", package="g++")
    system = wheel.outside_libraries(also=_ALWAYS)
    missing = [name for name, path in system.items() if path is None]
    # The vendor's libraries are plain "libX.so"; a missing "libX.so.N" is an ordinary system package, which a
    # stub could not replace.
    if lost := [name for name in missing if not name.endswith(".so")]:
        raise DryRunError(f"system libraries missing: {', '.join(lost)}; install the packages that have them")
    present = [path for path in system.values() if path is not None]
    wanted = wheel.wanted_symbols() | _looked_up(wheel)
    wanted -= wheel.provided_symbols(present) | REAL_SYMBOLS
    for part in (HOME, PYTHON, "src"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir()
    _compile(folder, compiler, assembler_source(wanted))
    # The dynamic linker recognises the same file under another name and loads it once.
    for name in missing:
        if name != _MAIN:
            (folder / LIBRARIES / name).symlink_to(_MAIN)
    # The vendor's Python package that mindspore insists on. It also asks for one named "te", but only prints a
    # message without it, and would import much more from it if it were there.
    (folder / PYTHON / "hccl").mkdir()
    (folder / PYTHON / "hccl" / "__init__.py").write_text("", encoding="utf-8")
    (folder / PYTHON / "hccl" / "sys_version.py").write_text("__sys_version__ = '8.3'\n", encoding="utf-8")
    return {"mindspore": str(wheel.folder), "libraries": missing, "symbols": len(wanted)}


def _compile(folder: Path, compiler: str, text: str) -> None:
    (folder / LIBRARIES).mkdir()
    stubs, status = folder / "src" / "stubs.s", folder / "src" / "status_factory.cc"
    stubs.write_text(text, encoding="utf-8")
    status.write_text(REAL_SOURCE, encoding="utf-8")
    flags = ["-D_GLIBCXX_USE_CXX11_ABI=0", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{_MAIN}"]
    output_of([compiler, *flags, "-o", str(folder / LIBRARIES / _MAIN), str(stubs), str(status)])


def _looked_up(wheel: Wheel) -> set[str]:
    """List the vendor's functions that the wheel may look up at run time."""
    found = set()
    for path in (*wheel.plugin, *wheel.other):
        data = path.read_bytes()
        for match in _LOOKED_UP.finditer(data):
            before = data[match.start() - 1 : match.start()]
            if not (before.isalnum() or before == b"_"):
                found.add(match.group()[:-1].decode())
    prefix, suffix = _PAIRED
    return found | {name + suffix for name in found if name.startswith(prefix) and not name.endswith(suffix)}
