"""Stub libraries for a wheel made here: a package `mindspore` with a plug-in that needs a vendor's library."""

import ctypes
import json
import os
import subprocess
import sys
import time

import pytest

from hyperparallel.dryrun import build, default_folder, environment, find_wheel, run_ranks
from hyperparallel.dryrun.assembler import assembler_source
from hyperparallel.errors import DryRunError

pytestmark = pytest.mark.slow
PLUGIN = 'extern "C" { int aclrtVendor(int); int plugin(int n) { return aclrtVendor(n) + 40; } }'
NAMES = 'extern "C" { const char *looked_up = "HcclLookedUp"; const char *operator_name = "aclnnAdd"; }'


def compile_library(text, path, *options):
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-o", str(path), *options]
    subprocess.run(command, input=text.encode(), check=True)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder to put on PYTHONPATH."""
    root = tmp_path_factory.mktemp("site")
    plugin = root / "mindspore" / "lib" / "plugin"
    plugin.mkdir(parents=True)
    (root / "mindspore" / "__init__.py").write_text("raise AssertionError('must not be imported')\n")
    vendor = root / "libvendor_thing.so"
    compile_library('extern "C" int aclrtVendor(int n) { return n; }', vendor, "-Wl,-soname,libvendor_thing.so")
    compile_library(PLUGIN, plugin / "libmindspore_ascend.so.2", "-Wl,--no-as-needed", str(vendor))
    compile_library(NAMES, root / "mindspore" / "lib" / "libother.so")
    vendor.unlink()  # as on a machine without the vendor's software
    return root


@pytest.fixture
def with_package(package, monkeypatch):
    """Make `package` what the interpreter would import."""
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.delenv("CXX", raising=False)
    return package


@pytest.fixture(scope="module")
def built(package, tmp_path_factory):
    """Stubs for `package`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(package))
        patch.delenv("CXX", raising=False)
        folder = tmp_path_factory.mktemp("stubs") / "new"
        return folder, build(folder)


def stamp_of(folder):
    return json.loads((folder / "stamp.json").read_text())


def test_plugin_loads_with_the_stubs_and_calls_return_0(built):
    folder, wheel = built
    (plugin,) = wheel.plugin
    code = f"import ctypes; print(ctypes.CDLL({str(plugin)!r}).plugin(2))"
    variables = environment(folder, wheel, ranks=2, rank=1)
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "40\n"
    with pytest.raises(OSError, match="libvendor_thing"):
        ctypes.CDLL(str(plugin))


def test_names_looked_up_at_run_time_are_there(built):
    library = ctypes.CDLL(str(built[0] / "latest" / "lib64" / "libhccl.so"))
    assert (library.HcclLookedUp(), library.aclnnAdd(), library.aclnnAddGetWorkspaceSize()) == (0, 0, 0)
    with pytest.raises(AttributeError):
        _ = library.HcclNotLookedUp


def test_second_build_does_nothing(built, with_package):
    folder, wheel = built
    before = (folder / "stamp.json").stat().st_mtime_ns
    assert build(folder) == wheel
    assert (folder / "stamp.json").stat().st_mtime_ns == before


def test_changed_wheel_is_built_again(built, with_package):
    folder, wheel = built
    before = stamp_of(folder)["fingerprint"]
    (library,) = (path for path in wheel.other if path.name == "libother.so")
    os.utime(library, (time.time(), time.time() + 100))
    build(folder)
    assert stamp_of(folder)["fingerprint"] != before
    assert len(stamp_of(folder)["fingerprint"]) == 64


@pytest.mark.parametrize("stamp", ["{}\n", "[]\n"])
def test_interrupted_build_is_done_again(built, with_package, stamp):
    folder, _ = built
    (folder / "stamp.json").write_text(stamp)
    (folder / "latest" / "lib64" / "libascendcl.so").unlink()
    build(folder)
    assert (folder / "latest" / "lib64" / "libascendcl.so").exists()
    assert stamp_of(folder)["fingerprint"]


def test_missing_compiler_is_named(with_package, tmp_path, monkeypatch):
    python = sys.executable
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DryRunError, match=r"g\+\+ or c\+\+ or clang\+\+; install it \(Debian: apt install g\+\+\)"):
        build(tmp_path / "stubs", python)


def test_missing_binutils_are_named(with_package, tmp_path, monkeypatch):
    (tmp_path / "g++").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DryRunError, match=r"objdump; install it \(Debian: apt install binutils\)"):
        build(tmp_path / "stubs")


def test_folder_with_other_files_is_left_alone(with_package, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(DryRunError, match="not empty"):
        build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_wheel_without_the_plugin_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mindspore").mkdir()
    (tmp_path / "mindspore" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DryRunError, match="no Ascend plug-in in .*mindspore/lib/plugin"):
        find_wheel()


def test_unknown_interpreter_is_refused():
    with pytest.raises(DryRunError, match="no interpreter 'pythonless'"):
        find_wheel("pythonless")


def test_default_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("HYPERPARALLEL_DRYRUN_DIR", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("HYPERPARALLEL_DRYRUN_DIR")
    assert default_folder().parts[-3:] == (".cache", "hyperparallel", "dryrun")


def test_environment_names_the_rank_and_drops_the_launcher(built, monkeypatch):
    folder, wheel = built
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    variables = environment(folder, wheel, 4, 3, level=1, save_graphs="graphs")
    assert (variables["RANK_SIZE"], variables["RANK_ID"], variables["MS_SIMULATION_LEVEL"]) == ("4", "3", "1")
    assert variables["LD_LIBRARY_PATH"].split(":")[0] == str(folder / "latest" / "lib64")
    assert os.path.isabs(variables["MS_DEV_SAVE_GRAPHS_PATH"])
    assert "MS_ROLE" not in variables
    assert "MS_DEV_DUMP_IR_PASSES" not in environment(folder, wheel, 4, 3, save_graphs="graphs", passes="all")


@pytest.mark.parametrize(("rank", "level", "said"), [(4, 0, "rank 4 of 4"), (-1, 0, "rank -1"), (0, 2, "level 2")])
def test_impossible_rank_or_level_is_refused(built, rank, level, said):
    with pytest.raises(DryRunError, match=said):
        environment(*built, 4, rank, level)


def test_ranks_run_at_most_so_many_at_once(built, with_package, tmp_path):
    folder, _ = built
    code = (
        "import os, sys, time, pathlib\n"
        "here = pathlib.Path(os.environ['MARKS']); mine = here / os.environ['RANK_ID']\n"
        "mine.touch(); time.sleep(0.1); print(len(list(here.iterdir()))); mine.unlink()\n"
        "sys.exit(int(os.environ['RANK_ID']))\n"
    )
    command = [sys.executable, "-c", code]
    runs = run_ranks(command, 6, [4, 0, 1, 3], jobs=2, folder=folder, extra_env={"MARKS": str(tmp_path)})
    assert [(run.rank, run.returncode) for run in runs] == [(0, 0), (1, 1), (3, 3), (4, 4)]
    assert max(int(run.output) for run in runs) <= 2


def test_returned_objects_are_cleared():
    text = assembler_source(["_ZN2ge6TensorC1Ev", "_ZNK2ge10TensorDesc8GetShapeEv", "_ZTVN2ge5ModelE"], "aarch64")
    constructor, function = text.split('"_ZN2ge6TensorC1Ev":')[1].split('"_ZNK2ge10TensorDesc8GetShapeEv":')
    assert "[x0]" in constructor.split("ret")[0]
    assert "[x8]" in function.split("ret")[0]
    assert '.type "_ZTVN2ge5ModelE", %object' in text


def test_unknown_processor_is_refused():
    with pytest.raises(DryRunError, match="riscv64"):
        assembler_source([], "riscv64")
