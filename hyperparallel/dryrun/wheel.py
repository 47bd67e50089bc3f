"""What an installed MindSpore wheel holds, and what its Ascend plug-in lacks to be loaded on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperparallel.errors import DryRunError

_SHARED_OBJECT = re.compile(r"\.so(\.[0-9.]+)?$")
_FIND = (
    "import importlib.util as u; s = u.find_spec('mindspore'); "
    "print(list(s.submodule_search_locations)[0] if s and s.submodule_search_locations else '')"
)


@dataclass(frozen=True)
class Wheel:
    """The shared objects of one installed mindspore package, by role.

    Args:
        folder: the package's folder.
        plugin: the Ascend plug-in itself.
        ascend: the plug-in and what it loads later: the objects whose needs have to be met.
        other: what else mindspore brings; no stub may stand in front of these.
    """

    folder: Path
    plugin: tuple[Path, ...]
    ascend: tuple[Path, ...]
    other: tuple[Path, ...]

    @property
    def search_path(self) -> list[Path]:
        """Folders where the dynamic linker has to look for the wheel's own objects."""
        return [self.folder / "lib" / "plugin" / "ascend", self.folder / "lib"]

    def fingerprint(self, *others: str) -> str:
        """Name this wheel on this machine; any change of a file or of `others` changes the name.

        Args:
            others: further texts the result depends on.

        Returns:
            64 hexadecimal digits.
        """
        files = [(str(path), path.stat().st_size, int(path.stat().st_mtime)) for path in (*self.ascend, *self.other)]
        return hashlib.sha256(json.dumps([others, platform.machine(), files]).encode()).hexdigest()

    def outside_libraries(self, also: Iterable[str] = ()) -> dict[str, Path | None]:
        """List the libraries that the plug-in is linked against and the wheel does not hold.

        Args:
            also: further names to look for.

        Returns:
            Name -> where the system has it, None where it is missing.
        """
        text = output_of([tool("objdump"), "-p", *map(str, self.ascend)])
        own = {path.name for path in (*self.ascend, *self.other)}
        names = set(re.findall(r"^\s*NEEDED\s+(\S+)", text, re.MULTILINE)) - own
        known = _linker_cache()
        return {name: _system_library(name, known) for name in sorted({*names, *also})}

    def wanted_symbols(self) -> set[str]:
        """List the functions and data that the plug-in uses and does not say which system library has."""
        return _symbols(self.ascend, defined=False)

    def provided_symbols(self, system: Iterable[Path]) -> set[str]:
        """List the symbols that need no stub.

        Args:
            system: the libraries outside the wheel that are present.

        Returns:
            Names of what the wheel or one of those libraries defines.
        """
        return _symbols((*self.ascend, *self.other, *sorted(set(system))), defined=True)


def find_wheel(python: str = sys.executable) -> Wheel:
    """Find the mindspore package that an interpreter would import, without importing it.

    Args:
        python: path or name of the interpreter.

    Raises:
        DryRunError: no such interpreter, no mindspore in it, or a mindspore without the Ascend plug-in.

    Returns:
        The wheel.
    """
    if shutil.which(python) is None:
        raise DryRunError(f"no interpreter {python!r}; give the path of the Python that has mindspore")
    folder = output_of([python, "-c", _FIND]).strip()
    if not folder:
        raise DryRunError(f"{python} cannot import mindspore; install its wheel there or name another interpreter")
    lib = Path(folder).resolve() / "lib"
    core = [path for path in _shared_objects(lib / "plugin") if "ascend" in path.name]
    if not core:
        raise DryRunError(f"no Ascend plug-in in {lib / 'plugin'}; the dry run needs mindspore's Linux wheel from PyPI")
    return Wheel(
        folder=lib.parent,
        plugin=(*core, *_shared_objects(lib / "plugin" / "ascend")),
        ascend=(*core, *_shared_objects(lib / "plugin" / "ascend", deep=True)),
        other=(*_shared_objects(lib), *_shared_objects(lib.parent)),
    )


def tool(*names: str, package: str = "binutils") -> str:
    """Find a program on PATH.

    Args:
        names: its possible names, the preferred one first; empty names are passed over.
        package: the Debian package to name in the error.

    Raises:
        DryRunError: none of them is there.

    Returns:
        The first name that exists.
    """
    wanted = [name for name in names if name]
    for name in wanted:
        if shutil.which(name):
            return name
    raise DryRunError(f"program not found on PATH: {' or '.join(wanted)}; install it (Debian: apt install {package})")


def output_of(command: Sequence[str]) -> str:
    """Run a command and return its standard output; `DryRunError` if it fails."""
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        shown, said = shlex.join(command[:12]), done.stderr.decode(errors="replace")
        raise DryRunError(f"command failed with {done.returncode}: {shown}\n{said}")
    return done.stdout.decode(errors="replace")


def _system_library(name: str, known: dict[str, Path]) -> Path | None:
    """Find a library as the dynamic linker would, given what its cache lists."""
    triplet = f"{platform.machine()}-linux-gnu"
    folders = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    places = [known[name]] if name in known else [Path(folder) / name for folder in folders]
    return next((path for path in places if _machine(path) == _own_machine()), None)


def _linker_cache() -> dict[str, Path]:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        return {}
    found: dict[str, Path] = {}
    for line in output_of([ldconfig, "-p"]).splitlines():
        match = re.match(r"\s*(\S+) \(.*\) => (\S+)", line)
        if match and _machine(Path(match[2])) == _own_machine():
            found.setdefault(match[1], Path(match[2]))
    return found


def _symbols(paths: Sequence[Path], defined: bool) -> set[str]:
    """List dynamic symbols: all that are defined, or the undefined ones that no system library provides.

    An undefined symbol with a version (memcpy@GLIBC_2.14) is a system library's: the vendor does not version
    its own. Weak ones may stay missing, and Python's are in the interpreter.
    """
    if not paths:
        return set()
    flag = "--defined-only" if defined else "--undefined-only"
    result = set()
    for line in output_of([tool("nm"), "-D", flag, *map(str, paths)]).splitlines():
        parts = line.split()
        if len(parts) < 2 or line.endswith(":"):
            continue
        kind, name = parts[-2:]
        if defined:
            result.add(name.split("@")[0])
        elif kind == "U" and "@" not in name and not name.startswith(("Py", "_Py")):
            result.add(name)
    return result


def _shared_objects(folder: Path, deep: bool = False) -> list[Path]:
    """List the shared objects for this machine in a folder, or below it; the wheel also carries others' files."""
    found = folder.rglob("*") if deep else folder.glob("*")
    return [
        path
        for path in sorted(found)
        if _SHARED_OBJECT.search(path.name) and not path.is_symlink() and _machine(path) == _own_machine()
    ]


def _machine(path: Path) -> bytes | None:
    """Read the processor an ELF file is for; None for any other file."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as stream:
        head = stream.read(20)
    return head[18:20] if len(head) == 20 and head.startswith(b"\x7fELF") else None


def _own_machine() -> bytes | None:
    return _machine(Path(sys.executable).resolve())
