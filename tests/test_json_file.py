"""A JSON file is read as a typed model or refused; a seal shows every change, and no change of layout."""

import json
from pathlib import Path

import pytest

from hyperparallel.errors import JsonError
from hyperparallel.json_file import read_at_most, read_json, seal
from hyperparallel.schema import Items, Strict


class Model(Strict):
    """What the files of these tests are."""

    count: int
    times: Items[float] = ()
    sha256: str = ""


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_right_file_is_read_however_it_is_laid_out(tmp_path):
    content = seal({"count": 1, "times": [1, 2.5]})
    for indent, sort in ((None, False), (4, True)):
        path = write(tmp_path / "a.json", json.dumps(content, indent=indent, sort_keys=sort))
        assert read_json(path, Model) == Model(count=1, times=(1.0, 2.5), sha256=content["sha256"])


WRONG = {
    "another value": (json.dumps({**seal({"count": 1}), "count": 2}), "was changed after it was written"),
    "an empty seal": ('{"count": 1, "sha256": ""}', "was changed after it was written"),
    "a value of another type": ('{"count": "1"}', "count = '1': input should be a valid integer"),
    "a float": ('{"count": 1.0}', "count = 1.0: input should be a valid integer"),
    "a boolean": ('{"count": true}', "count = True: input should be a valid integer"),
    "a long text": ('{"count": "%s"}' % ("x" * 9999), "count = 'xxx"),
    "an unknown key": ('{"count": 1, "cuont": 1}', "unknown key 'cuont'"),
    "a missing key": ("{}", "'count' is missing; add it"),
    "a list": ("[]", "input should be a valid dictionary"),
    "not finite": ('{"count": 1, "times": [NaN]}', "NaN, which is not a finite number"),
    "a key twice": ('{"count": 1, "count": 1}', "has the key 'count' twice"),
    "no JSON": ("{", "is not JSON"),
    "no text": (b'{"count": \xff}', "is not JSON (byte 10 is not UTF-8)"),
    "too deep": ("[" * 100_000, "nested more than 100 deep"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused(tmp_path, text, said):
    with pytest.raises(JsonError) as error:
        read_json(write(tmp_path / "a.json", text), Model)
    assert said in str(error.value) and len(str(error.value)) < 300


def test_no_more_is_read_than_the_limit():
    with pytest.raises(OSError, match="it has more than 1,000 bytes"):
        read_at_most(Path("/dev/zero"), 1000)
