"""JSON that can be understood in one way only."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.errors import JsonError
from hyperparallel.io import MAX_DEPTH, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES, st.booleans(), st.booleans())
def test_what_json_writes_comes_back(values, ascii, finite):
    assert parse_json(json.dumps(values, ensure_ascii=ascii), finite) == values


BAD = {
    '{"a": 1, "a": 1}': "has the key 'a' twice in one object",
    r'[{"b": [{"c": 1, "a": 1, "d": 0, "\u0061": 2}]}]': "has the key 'a' twice",
    '{"": 1, "": 1}': "has the key '' twice",
    '{"a": 1': "is not JSON",
    "": "is not JSON",
    "{} {}": "is not JSON",
    "\ufeff1": "is not JSON",
    "9" * 5000: "is not JSON",
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1): "nested more than 100 deep",
    '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1): "nested more than 100 deep",
    "[" * 100_000: "nested more than 100 deep",
}
INFINITE = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400]


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize(("text", "said"), BAD.items(), ids=range(len(BAD)))
def test_what_has_no_one_meaning_is_refused(text, said, finite):
    with pytest.raises(JsonError, match=said):
        parse_json(text, finite)


@pytest.mark.parametrize("text", INFINITE)
def test_numbers_that_are_not_finite(text):
    for around in ("%s", '{"a": [%s]}'):
        with pytest.raises(JsonError, match=rf"holds {text[:40]}, which is not a finite number"):
            parse_json(around % text)
        parse_json(around % text, finite=False)


def test_the_depth_does_not_depend_on_the_caller():
    inside = '{"a":[' * (MAX_DEPTH // 2) + "]}" * (MAX_DEPTH // 2)

    def deep(calls):
        return deep(calls - 1) if calls else [parse_json(inside), refused(f"[{inside}]")]

    def refused(text):
        with pytest.raises(JsonError) as error:
            parse_json(text)
        return str(error.value)

    assert deep(sys.getrecursionlimit() // 2) == deep(1)
