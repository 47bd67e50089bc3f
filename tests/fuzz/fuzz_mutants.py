"""Make wrong files of right ones, each from a seed: by structure (keys, types, numbers, order) and by bytes.

A file is held as a tree that can say more than JSON's dictionaries: an `Obj` may have a key twice, and a `Raw` is
printed as it stands, so `NaN`, `1e999` or a tag of YAML can be put anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml


class Obj(list):
    """An object as pairs [key, value], in order."""


class Raw(str):
    """Text that is printed without quotes."""


Slot = tuple[list, int]
"""A list and the index of a value in it; the value of a pair has index 1."""


def mutate(content: bytes, seed: str, block: bool, finish: Callable[[Any], Any] = lambda tree: tree) -> bytes:
    """Change a file.

    Args:
        content: of the right file, JSON or YAML.
        seed: the same seed makes the same file.
        block: print as YAML in block style, else as JSON.
        finish: called with the changed tree, to put a checksum right.
    """
    random_ = random.Random(seed)
    if random_.random() < 0.3:
        for _ in range(random_.choice((1, 1, 1, 2, 4))):
            content = random_.choice(_BYTES)(content, random_)
        return content
    tree = [to_tree(yaml.safe_load(content) if block else json.loads(content))]
    for _ in range(random_.choice((1, 1, 1, 1, 2, 3))):
        slots = list(_slots(tree))
        _change(*random_.choice(slots), slots, random_, block)
    tree = finish(tree[0])
    if block:
        style = random_.random()
        text = to_block(tree) if style < 0.8 else to_json(tree)
    else:
        text = to_json(tree)
    return text.encode("utf-8", "surrogatepass")


def to_tree(value: Any) -> Any:
    """Turn dictionaries into pairs."""
    if isinstance(value, dict):
        return Obj([key, to_tree(inner)] for key, inner in value.items())
    return [to_tree(inner) for inner in value] if isinstance(value, list) else value


def to_json(tree: Any) -> str:
    """Print a tree as JSON, or what comes near it."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Obj):
        return "{" + ", ".join(f"{json.dumps(key)}: {to_json(value)}" for key, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(to_json, tree)) + "]"
    return json.dumps(tree)


def to_block(tree: Any, depth: int = 0) -> str:
    """Print a tree as YAML; objects of objects in block style, the rest as JSON."""
    if not isinstance(tree, Obj) or not tree or depth > 20:
        return to_json(tree) + "\n"
    lines = []
    for key, value in tree:
        word = key if isinstance(key, str) and key.replace("_", "").isalnum() else json.dumps(key)
        nested = isinstance(value, Obj) and value
        lines.append(f"{'  ' * depth}{word}:{chr(10) if nested else ' '}{to_block(value, depth + 1)}")
    return "".join(lines)


def _slots(tree: Any) -> Iterator[Slot]:
    """List all places of values inside one."""
    if isinstance(tree, Obj):
        for pair in tree:
            yield pair, 1
            yield from _slots(pair[1])
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield tree, index
            yield from _slots(value)


_WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, -1e308, 1e-320, 10**6, 10**9, 10**12, 10**18, 2**63, 10**40),
    *(
        "",
        "1",
        "0",
        "none",
        "\x00",
        "\ud800",
        "١",
        "a b",
        "../x",
        "/dev/zero",
        "/",
        "x" * 100_000,
        "\n\n",
        "{}",
        "=1+1",
    ),
    *(Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("1" * 5000), Raw("0x10"), Raw("01"), Raw("'")),
    *(Raw("[" * 50 + "]" * 50), Raw("[" * 5000 + "]" * 5000), Raw('{"a":' * 2000 + "1" + "}" * 2000), Raw("")),
    *([], Obj(), [[]], [None], Obj([["a", 1]]), [0] * 10_000),
)
_WRONG_YAML: tuple[Raw, ...] = tuple(
    map(
        Raw,
        (
            *(
                ".nan",
                ".inf",
                "-.inf",
                "1_000",
                "1:30",
                "0o17",
                "yes",
                "on",
                "~",
                "2026-11-30",
                "1e5",
                "1e+5",
                "!!int '3'",
            ),
            *(
                "&a [*a]",
                "*b",
                "<<",
                "!!python/object/apply:os.system ['true']",
                "!!binary aGk=",
                "!x 1",
                "? a",
                "- - 1",
            ),
            *(
                "&a [1,1,1,1,1,1,1,1,1]",
                "|\n    text",
                "{a: 1, a: 2}",
                "{<<: {a: 1}}",
                "@",
                "`",
                "%",
                "\t1",
                "# all gone",
            ),
            "[&a [1,1,1,1,1,1,1,1,1,1], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], "
            "&d [*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e]]",
        ),
    )
)


def _change(where: list, index: int, slots: list[Slot], random_: random.Random, block: bool) -> None:
    """Change one value, or the list or object that it is."""
    value = where[index]
    choice = random_.random()
    if isinstance(value, list) and value and choice < 0.5:
        _change_inside(value, random_)
    elif isinstance(value, str) and not isinstance(value, Raw) and value and choice < 0.5:
        where[index] = _changed_text(value, random_)
    elif isinstance(value, int | float) and not isinstance(value, bool) and choice < 0.5:
        where[index] = _changed_number(value, random_)
    elif choice < 0.65:  # swap two values anywhere
        other, at = random_.choice(slots)
        if other is not where and _apart(value, other[at]):
            where[index], other[at] = other[at], where[index]
    elif choice < 0.72:
        where[index] = str(value) if not isinstance(value, str) else _number_of(value)
    elif choice < 0.78:
        where[index] = random_.choice(([value], Obj([["a", value]]), _nested(value, random_.choice((3, 90, 300)))))
    else:
        where[index] = random_.choice(_WRONG + _WRONG_YAML if block else _WRONG)


def _change_inside(value: list, random_: random.Random) -> None:
    """Drop, double, rename, empty, cut, turn round or repeat what a list or object holds."""
    at = random_.randrange(len(value))
    is_object = isinstance(value, Obj)
    act = random_.choice(("drop", "double", "rename", "empty", "cut", "shuffle", "repeat", "add"))
    if act == "drop":
        del value[at]
    elif act == "double":
        value.insert(random_.randrange(len(value) + 1), _copy(value[at]))
    elif act == "rename" and is_object:
        value[at][0] = random_.choice(
            (f"{value[at][0]}s", str(value[at][0])[1:], random_.choice(value)[0], "__class__", "")
        )
    elif act == "empty":
        value.clear()
    elif act == "cut":
        del value[at:]
    elif act == "shuffle":
        random_.shuffle(value)
    elif act == "repeat" and not is_object:
        value[:] = [_copy(one) for one in value] * random_.choice((2, 10, 100))
    elif act == "add":
        value.append(["more", 1] if is_object else random_.choice(_WRONG[:20]))


def _changed_text(text: str, random_: random.Random) -> str:
    """Change a word, a digit or a letter of a text, or its length."""
    words = text.split(" ")
    at, letter = random_.randrange(len(words)), random_.randrange(len(text))
    act = random_.randrange(7)
    if act == 0:
        other = random_.randrange(len(words))
        words[at], words[other] = words[other], words[at]
        return " ".join(words)
    if act == 1:
        return " ".join(words[:at] + words[at + 1 :])
    if act == 2:
        return " ".join([*words[:at], words[at], *words[at:]])
    digits = [place for place, one in enumerate(text) if one.isdigit()]
    if act == 3 and digits:
        place = random_.choice(digits)
        return text[:place] + random_.choice(("0", "1", "7", "9", "99999999", "-1", "")) + text[place + 1 :]
    if act == 4:
        return text[:letter]
    if act == 5:
        return text[:letter] + random_.choice("x\x00 ,()=>*+\n\té") + text[letter + 1 :]
    return text * random_.choice((2, 3, 50))


def _changed_number(value: float, random_: random.Random) -> Any:
    changes = (
        -value,
        value + 1,
        value - 1,
        value * 2,
        value + 0.5,
        value * 1000,
        value * 10**9,
        value * 10**15,
        float(value),
    )
    return random_.choice(changes)


def _number_of(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else len(text)


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _apart(one: Any, other: Any) -> bool:
    """Tell whether neither of two values is inside the other, which a swap would make endless."""

    def inside(value: Any, wanted: Any) -> bool:
        return value is wanted or (isinstance(value, list) and any(inside(inner, wanted) for inner in value))

    return not (isinstance(one, list) and inside(one, other)) and not (isinstance(other, list) and inside(other, one))


def _copy(value: Any) -> Any:
    return type(value)(map(_copy, value)) if isinstance(value, list) else value


def _flip(data: bytes, random_: random.Random) -> bytes:
    at = random_.randrange(len(data) or 1)
    return data[:at] + bytes([data[at] ^ (1 << random_.randrange(8))]) + data[at + 1 :] if data else b"\x01"


def _cut(data: bytes, random_: random.Random) -> bytes:
    return data[: random_.randrange(len(data) + 1)]


def _delete(data: bytes, random_: random.Random) -> bytes:
    at = random_.randrange(len(data) + 1)
    return data[:at] + data[at + random_.choice((1, 2, 10, 100)) :]


def _insert(data: bytes, random_: random.Random) -> bytes:
    at = random_.randrange(len(data) + 1)
    more = random_.choice(
        (b"\x00", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"}", b"]", b'"', b",", b"9" * 400)
    )
    return data[:at] + random_.choice((more, random_.randbytes(5))) + data[at:]


def _twice(data: bytes, random_: random.Random) -> bytes:
    first, last = sorted(random_.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:]


def _front(data: bytes, random_: random.Random) -> bytes:
    return random_.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b"#", b"---\n")) + data


def _utf16(data: bytes, random_: random.Random) -> bytes:
    return data.decode("utf-8", "replace").encode("utf-16")


_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _flip, _flip, _cut, _delete, _delete, _insert, _insert, _twice, _front, _utf16),
)
