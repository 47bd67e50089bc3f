from pathlib import Path

import pytest

from hyperparallel.cost.device import load_device
from hyperparallel.errors import ConfigError

DEVICES = sorted((Path(__file__).parents[2] / "yaml" / "devices").glob("*.yaml"))
TEXT = """\
name: a device
peak_tflops:
  float32: 2
achievable: 0.5
memory_gib: 1
memory_gbytes_per_s: 10
memory_achievable: 0.8
devices_per_node: 8
inside:
  alpha_us: 20
  gbytes_per_s: 4
between:
  alpha_us: 30
  gbytes_per_s: 2
"""


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.stem)
def test_the_files_of_the_repository_load_by_name_and_by_path(path):
    device = load_device(path.stem)
    assert device == load_device(path) == load_device(f"yaml/devices/{path.name}")
    rate = device.rate("float16")
    assert rate.element == 2 and rate.flops < device.peak_tflops["float16"] * 1e12
    assert device.inside.beta <= device.between.beta
    assert "ASSUMPTION" in path.read_text()  # what no source states is marked


def test_a_rate_is_the_peak_times_what_is_achievable(tmp_path):
    (tmp_path / "x.yaml").write_text(TEXT)
    device = load_device(tmp_path / "x.yaml")
    assert device.rate("float32") == pytest.approx((1e12, 8e9, 4))
    assert device.memory_bytes == 2**30
    assert (device.link(8).alpha, device.link(8).beta) == pytest.approx((20e-6, 0.25e-9))
    assert (device.link(9).alpha, device.link(9).beta) == pytest.approx((30e-6, 0.5e-9))
    with pytest.raises(ConfigError, match="no peak_tflops for 'bfloat16'; it has float32: add it"):
        device.rate("bfloat16")


MISTAKES = {
    "unknown key": (TEXT.replace("achievable: 0.5", "achievabel: 0.5", 1), "unknown key 'achievabel'; did you mean"),
    "missing": (TEXT.replace("memory_gib: 1\n", ""), "'memory_gib' is missing; add it"),
    "inside a link": (TEXT.replace("  gbytes_per_s: 4\n", ""), "'inside.gbytes_per_s' is missing"),
    "too large": (TEXT.replace("achievable: 0.5", "achievable: 1.5", 1), "achievable = 1.5: input should be less than"),
    "not a number": (TEXT.replace("float32: 2", "float32: many"), "peak_tflops.float32 = 'many'"),
    "not finite": (TEXT.replace("memory_gib: 1", "memory_gib: .inf"), "memory_gib = inf"),
    "twice": (TEXT + "name: b\n", "line 15: name is given twice (first in line 1)"),
    "a list": ("- 1\n", "= [1]: input should be a valid dictionary"),
    "not YAML": ("a: [1\n", "is not valid YAML"),
    "python object": ("!!python/object/apply:os.system [ls]\n", "is not valid YAML"),
    "a list as key": (TEXT + "? [a]\n: 1\n", "is not valid YAML"),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_in_a_file(tmp_path, text, words):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_device(path)
    assert str(error.value).startswith(f"{path}") and words in str(error.value)


@pytest.mark.parametrize("name", ["ascend_910", "no/such.yaml", "", "yaml/devices"])
def test_a_name_that_is_no_file_lists_those_that_are(name):
    with pytest.raises(ConfigError, match="is not a file; yaml/devices has ascend_910b, ascend_910c, cpu"):
        load_device(name)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        load_device(tmp_path / "x.yaml")
