"""Read YAML: one reader for every file of the product and for every value on its command line.

Null, booleans and numbers are those of the core schema of YAML 1.2: `010` is 10, `5e-1` is a number, and `yes`, `1:30`
and `2026-11-30` are text. Merging with `<<` is no part of it and is refused, as is every tag but those of the schema.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml
from hyperparallel.errors import ConfigError

MAX_BYTES = 2**18
"""Longest file, and longest value on a command line."""

MAX_DEPTH = 32
"""Most lists and sections inside each other."""

MAX_VALUES = 100_000
"""Most values of a file, each alias counted with all that it stands for."""

_CORE = "tag:yaml.org,2002:"
_MAX_DIGITS = 100  # of a number: enough for every one that a float holds
_SPELLINGS = {
    "null": re.compile(r"~|null|Null|NULL|", re.ASCII),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE", re.ASCII),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII),
    "float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII
    ),
}
_TAGS = {f"{_CORE}{kind}" for kind in (*_SPELLINGS, "str", "map", "seq")}


class _Nothing:
    """The type of NOTHING."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
"""The value of a key with nothing after it, which is a section without keys, or a slip; `null` is None."""


class Document(NamedTuple):
    """What a file holds.

    Args:
        values: dictionaries, lists, str, int, float, bool, None and NOTHING; no part of it is in two places.
        lines: the line of every key and of every item of a list, counted from 1.
    """

    values: Any
    lines: dict[tuple[str, ...], int]


def read_yaml(path: str | Path) -> Document:
    """Read a file.

    Args:
        path: text in UTF-8, at most MAX_BYTES.

    Raises:
        ConfigError: it cannot be read, is not YAML 1.2, gives a key twice, or has a key that is no text; names file,
            line and what is wrong.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: has more than {MAX_BYTES} bytes, the most of a YAML file; shorten it")
        return _parse(content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not a text file in UTF-8; give a YAML file") from None
    except _Refused as error:
        raise ConfigError(f"{path}, line {error.problem_mark.line + 1}: {error.problem}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: is not valid YAML ({error.problem})") from None


def parse_value(text: str) -> Any:
    """Read one value of a command line, by the same rules.

    Args:
        text: one value, and nothing beside it.

    Raises:
        ConfigError: says why it is not one.
    """
    shown = repr(text if len(text) <= 200 else f"{text[:200]}...")
    try:
        return _parse(text, alone=True).values
    except _Refused as error:
        raise ConfigError(f"{shown}: {error.problem}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{shown} is not a YAML value; quote it ({error.problem})") from None


class _Refused(yaml.MarkedYAMLError):
    """What is YAML, but is not taken."""


def _refused(problem: str, node: yaml.Node | yaml.Event) -> _Refused:
    return _Refused(problem=problem, problem_mark=node.start_mark)


class _Loader(yaml.SafeLoader):
    """Find the values of a text as nodes, by the core schema."""

    yaml_implicit_resolvers: ClassVar[dict] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, unless it is too deep or has a tag of its own."""
        event = self.peek_event()
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TAGS:
            raise yaml.MarkedYAMLError(problem=f"the tag {tag!r} is not supported", problem_mark=event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _refused(f"is nested too deeply; at most {MAX_DEPTH} levels are read", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_FIRST = {"null": ["~", "n", "N", ""], "bool": [*"tTfF"], "int": [*"-+0123456789"], "float": [*"-+.0123456789"]}
for _kind, _first in _FIRST.items():
    _Loader.add_implicit_resolver(f"{_CORE}{_kind}", re.compile(rf"({_SPELLINGS[_kind].pattern})\Z", re.ASCII), _first)


def _parse(text: str, alone: bool = False) -> Document:
    """Read a text; `alone` refuses what stands beside its value."""
    if len(text) > MAX_BYTES:
        raise yaml.MarkedYAMLError(problem=f"it is longer than {MAX_BYTES} characters")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        raise _bad_character(text, error.position, f"U+{error.character:04X} is not allowed in it") from None
    except (ValueError, OverflowError):  # of chr()
        raise yaml.MarkedYAMLError(problem="an escape in it is no character") from None
    if getattr(loader, "yaml_version", None) not in (None, (1, 2)):
        raise yaml.MarkedYAMLError(problem="it says that it is of another version than YAML 1.2")
    if alone and node is not None:
        beside = (text[: node.start_mark.index] + text[node.end_mark.index :]).strip()
        if beside:
            raise yaml.MarkedYAMLError(problem=f"{beside!r} is no part of the value")
    builder = _Builder()
    return Document(NOTHING if node is None else builder.build(node, ()), builder.lines)


class _Builder:
    """Make values of nodes: everything is copied, so changing one place never changes another."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, ...], int] = {}
        self._made = 0
        self._inside: set[int] = set()

    def build(self, node: yaml.Node, keys: tuple[str, ...]) -> Any:
        """Return what a node stands for."""
        self._made += 1
        if self._made > MAX_VALUES:
            raise _refused(f"its aliases stand for more than {MAX_VALUES} values; write out what is meant", node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if id(node) in self._inside:
            raise _refused(f"{'.'.join(keys)} refers to itself; write the values out", node)
        if len(keys) >= MAX_DEPTH:
            raise _refused(f"is nested too deeply; at most {MAX_DEPTH} levels are read", node)
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != f"{_CORE}{kind}":
            raise _refused(f"a {'section' if kind == 'map' else 'list'} has the tag of another kind of value", node)
        self._inside.add(id(node))
        value = self._section(node, keys) if kind == "map" else self._list(node, keys)
        self._inside.remove(id(node))
        return value

    def _list(self, node: yaml.SequenceNode, keys: tuple[str, ...]) -> list[Any]:
        for index, item in enumerate(node.value):
            self.lines[(*keys, str(index))] = item.start_mark.line + 1
        return [self.build(item, (*keys, str(index))) for index, item in enumerate(node.value)]

    def _section(self, node: yaml.MappingNode, keys: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is no text", problem_mark=key.start_mark)
            name = _scalar(key)
            if not isinstance(name, str):
                raise _refused(f"the key {key.value!r} is no text; write it in quotes if it is meant", key)
            if name == "<<" and key.style is None:
                raise _refused("'<<' does not merge in YAML 1.2; write the keys out", key)
            path = (*keys, name)
            if name in values:
                raise _refused(f"{'.'.join(path)} is given twice (first in line {self.lines[path]})", key)
            self.lines[path] = key.start_mark.line + 1
            values[name] = self.build(value, path)
        return values


def _scalar(node: yaml.ScalarNode) -> Any:
    """Return what a word stands for."""
    kind, text = node.tag.removeprefix(_CORE), node.value
    if kind == "str":
        return _join_surrogates(node)
    if kind not in _SPELLINGS or _SPELLINGS[kind].fullmatch(text) is None:
        raise _refused(f"{text!r} is not a value of the tag !!{kind}", node)
    if kind == "null":
        return NOTHING if text == "" and node.style is None else None
    if kind == "bool":
        return text.lower() == "true"
    if len(text) > _MAX_DIGITS:
        raise _refused(f"a number of {len(text)} characters is longer than the {_MAX_DIGITS} that are read", node)
    return _integer(text, node) if kind == "int" else _float(text, node)


def _integer(text: str, node: yaml.Node) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    value = int(text, base)
    if not -(2**63) <= value < 2**63:
        raise _refused(f"{text} is beyond 64 bits; give a smaller number", node)
    return value


def _float(text: str, node: yaml.Node) -> float:
    if text[-1] in "fFnN":  # of inf and nan; no number ends in these
        return float(text.replace(".", ""))
    value = float(text)
    if abs(value) == float("inf") or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise _refused(f"{text} is beyond what a float holds; give another number", node)
    return value


def _join_surrogates(node: yaml.ScalarNode) -> str:
    r"""Join what JSON writes as two escapes, as in "\ud83d\ude00"."""
    if not re.search("[\ud800-\udfff]", node.value):
        return node.value
    try:
        return node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _refused("a text holds half of a surrogate pair; write the character itself", node) from None


def _bad_character(text: str, position: int, problem: str) -> yaml.MarkedYAMLError:
    line = text.count("\n", 0, position)
    column = position - (text.rfind("\n", 0, position) + 1)
    mark = yaml.Mark("", position, line, column, None, None)
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
