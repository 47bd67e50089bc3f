"""The reader of YAML: the core schema of YAML 1.2, and what is refused before it can be misread or fill the memory."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.errors import ConfigError
from hyperparallel.yaml_file import MAX_BYTES, NOTHING, parse_value, read_yaml

CORE = {
    # From the tables of "10.3. Core Schema" of the specification of YAML 1.2.
    **dict.fromkeys(["null", "Null", "NULL", "~"], None),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
    "0": 0,
    "0o7": 7,
    "0x3A": 58,
    "-19": -19,
    "+12": 12,
    "-0": 0,
    "0.": 0.0,
    "-0.0": -0.0,
    ".5": 0.5,
    "+12e03": 12000.0,
    "-2E+05": -200000.0,
    "5e-1": 0.5,
    "1.e2": 100.0,
    ".inf": math.inf,
    "-.Inf": -math.inf,
    "+.INF": math.inf,
    # What YAML 1.1 reads otherwise.
    "010": 10,
    "007": 7,
    "1e3": 1000.0,
    "09": 9,
    **{text: text for text in ["yes", "No", "on", "OFF", "y", "n", "tRUE", "nULL", "1:30", "190:20:30", "2026-11-30"]},
    **{
        text: text
        for text in ["1_000", "0b101", "0o8", "0xg", "-0x1", "1.5.0", "e5", ".", "-", "+", "=", "<<", "١"]
        if text != "-"
    },
    "2026-11-30T12:00:00Z": "2026-11-30T12:00:00Z",
    "inf": "inf",
    "nan": "nan",
    ".iNF": ".iNF",
    # Tags of the schema, quotes and blocks.
    "!!str 5": "5",
    "!!float 5": 5.0,
    "!!int 010": 10,
    "'5'": "5",
    '"true"': "true",
    "|\n  5": "5",
    "[]": [],
    "{}": {},
    '"\\ud83d\\ude00"': "\U0001f600",
    '"\\U0001F600"': "\U0001f600",
    "\U0001f600": "\U0001f600",
    "": NOTHING,
    "# text": NOTHING,
    "{a: }": {"a": NOTHING},
    "{a: ~, b: ''}": {"a": None, "b": ""},
    "{a: &x [1], b: *x}": {"a": [1], "b": [1]},
}


@pytest.mark.parametrize(("text", "value"), CORE.items(), ids=map(ascii, CORE))
def test_the_core_schema(text, value):
    found = parse_value(text)
    assert found == value and type(found) is type(value)
    assert not isinstance(value, float) or math.copysign(1, found) == math.copysign(1, value)


def test_not_a_number_is_none():
    assert all(math.isnan(parse_value(text)) for text in (".nan", ".NaN", ".NAN"))


REFUSED = {
    "too large": ("1e999", "beyond what a float holds"),
    "too small": ("-1e-999", "beyond what a float holds"),
    "too large a whole number": (str(2**63), "beyond 64 bits"),
    "too many digits": ("9" * 5000, "a number of 5000 characters"),
    "an int that is none": ("!!int 5.5", "'5.5' is not a value of the tag !!int"),
    "a boolean that is none": ("!!bool yes", "'yes' is not a value of the tag !!bool"),
    "a list as a section": ("!!map [a]", "has the tag of another kind"),
    "a section as a text": ("!!str {a: 1}", "has the tag of another kind"),
    **{
        tag: (f"{tag} x", f"the tag '{tag.replace('!!', 'tag:yaml.org,2002:')}' is not supported")
        for tag in ("!", "!x", "!!binary", "!!set", "!!omap", "!!pairs", "!!timestamp", "!!python/name:os.system")
    },
    "twice": ("{a: 1, 'a': 2}", "a is given twice (first in line 1)"),
    "twice inside": ("{a: {b: 1, b: 1}}", "a.b is given twice"),
    "number as key": ("{1: a}", "the key '1' is no text; write it in quotes"),
    "boolean as key": ("{true: a}", "the key 'true' is no text"),
    "list as key": ("{[a]: a}", "a key is no text"),
    "merge": ("{a: &x {b: 1}, c: {<<: *x}}", "'<<' does not merge in YAML 1.2"),
    "itself": ("&a [*a]", "refers to itself"),
    "unknown alias": ("*a", "undefined alias 'a'"),
    "half a pair": ('"\\ud83d"', "half of a surrogate pair; write the character itself"),
    "other half": ('["\\ude00\\ud83d"]', "half of a surrogate pair"),
    "half a pair as key": ('{"\\ud83d": 1}', "half of a surrogate pair"),
    "half a pair, not escaped": ("\ud83d", "U+D83D is not allowed"),
    "zero byte": ("a\0", "U+0000 is not allowed"),
    "no character": ('"\\UFFFFFFFF"', "an escape in it is no character"),
    "a comment": ("a # b", "'# b' is no part of the value"),
    "a document": ("--- a", "'---' is no part of the value"),
    "YAML 1.1": ("%YAML 1.1\n--- on", "of another version than YAML 1.2"),
    "deep": ("[" * 100_000, "nested too deeply; at most 32 levels"),
    "deep sections": ("{a: " * 40, "nested too deeply; at most 32 levels"),
    "deep by aliases": ("[&a0 [x]" + "".join(f", &a{n + 1} [*a{n}]" for n in range(40)) + "]", "nested too deeply"),
    "long": ("x" * (MAX_BYTES + 1), "longer than 262144"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text, words):
    began = time.process_time()
    with pytest.raises(ConfigError) as error:
        parse_value(text)
    assert words in str(error.value) and len(str(error.value)) < 500
    assert time.process_time() - began < 1


def test_aliases_do_not_multiply(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(20)]
    path = tmp_path / "x.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="line 1: its aliases stand for more than 100000 values"):
        read_yaml(path)


def test_what_an_alias_stands_for_is_a_copy(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: &x {b: [1]}\nc: *x\n")
    values, _ = read_yaml(path)
    values["a"]["b"].append(2)
    assert values["c"] == {"b": [1]}


def test_lines_of_keys_and_items(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa:\n  b: 1\n  c:\n    - x\n    - y: 2\n")
    values, lines = read_yaml(path)
    assert values == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", "0"): 4,
        ("a", "c", "1"): 5,
        ("a", "c", "1", "y"): 5,
    }


def test_the_place_of_a_character_that_is_none(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\nb: \x07\n")
    with pytest.raises(ConfigError, match=r"x.yaml, line 2, column 4: is not valid YAML \(U\+0007 is not allowed"):
        read_yaml(path)


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_of_python_read_back(number):
    for text in (repr(number), json.dumps(number)):
        found = parse_value(text)
        assert found == number and type(found) is type(number)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.recursive(
        st.none() | st.booleans() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8
    )
)
def test_json_reads_back(value):
    assert parse_value(json.dumps(value)) == value


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc", "Cn", "Zl", "Zp"])))
def test_a_text_in_single_quotes_reads_back(text):
    quoted = "'" + text.replace("'", "''") + "'"
    assert parse_value(quoted) == text


@given(st.text())
def test_anything_is_a_value_or_one_sentence(text):
    try:
        parse_value(text)
    except ConfigError as error:
        assert len(str(error).splitlines()) <= 1  # noqa: PT017 - either is right
