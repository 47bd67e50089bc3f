"""Read the text of a graph that MindSpore dumped (*.ir) into nodes.

    subgraph @12_1_Net_construct_5(%para3_x) {
      %0(h) = PrimFunc_MatMul(%para3_x, %para2_w, Bool(0), Bool(1)) {instance name: mm} cnode_attrs: {...}
          : (<Tensor[Float32], (8, 8)>, ...) -> (<Tensor[Float32], (8, 8)>)
          # Fullname with scope: (Default/MatMul-op0)
      %1(CNode_9) = call @13_2_f_7(%0)
      %2(CNode_11) = %5[@FuncUnion(@14_a_3, @15_b_4)](%1)
      Return(%2)
    }

Names `%N` are local to a graph; parameters `%paraN_name` are unique in a file, and those of the entry graph are
listed before it. Closures have been lifted by the time of the final graph: no graph uses another one's `%N`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hyperparallel.errors import DryRunError


class Node(NamedTuple):
    """One line of a graph.

    Args:
        name: "%7", or "Return".
        op: "MatMul"; "call" where a graph is called.
        args: texts of the inputs.
        calls: graphs it may call: none, one, or one per branch.
        closure: what holds the graph to call, "%5", where it is not named directly.
        attrs: every attribute, as integer or text.
        scope: "Default/stage-Stage/MatMul-op0".
        type: of the output, "(<Tensor[Float32], (8, 8)>)".
    """

    name: str
    op: str
    args: tuple[str, ...]
    calls: tuple[str, ...]
    closure: str | None
    attrs: dict[str, int | str]
    scope: str = ""
    type: str = ""


class Graph(NamedTuple):
    """A graph: its parameters' names and its nodes in the printed order."""

    params: tuple[str, ...]
    nodes: list[Node]


class IR(NamedTuple):
    """A file: the name of its entry graph, and every graph by name."""

    entry: str
    graphs: dict[str, Graph]


_REFERENCE = re.compile(r"%\w[^\s,()\[\]{}]*")
_PARAMETER = re.compile(r"%para\d+_[^\s,):]*")
_CALLED = re.compile(r"@(?!Partial\(|FuncUnion\()([^\s(),\]]+)")
_PREFIX = re.compile(r"^(PrimFunc_|DoSignature\w*::|S_Prim_)")
_NUMBER = re.compile(r"^(?:(?:I64|I32|U64|Bool)\()?(-?\d+)\)?$")
# Quoted text is one token; "<" and ">" are brackets unless part of "<=", "->", "=>" or a comparison.
_TOKEN = re.compile(r'"[^"]*"|[(\[{]|[)\]}]|<(?![= ])|(?<![-= ])>|,')
_OPEN, _CLOSE = frozenset("([{<"), frozenset(")]}>")
# The primitive's own win: the pipeline passes also note a dest_rank in cnode_primal_attrs, a stage, not a rank.
_ATTRIBUTES = ("cnode_attrs: {", "cnode_primal_attrs: {", "primitive_attrs: {")


def read_ir(path: Path | str) -> IR:
    """Read a dumped graph.

    Args:
        path: a `*.ir` file.

    Raises:
        DryRunError: no such file, or not such a file; says which line.

    Returns:
        Its graphs.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DryRunError(f"{path}: {error.strerror}; expected a graph that mindspore saved") from None
    return parse_ir(text, str(path))


def parse_ir(text: str, path: str = "graph") -> IR:
    """Read the text of a dumped graph; `path` names it in errors. See `read_ir`."""
    entry, graphs, nodes = None, {}, None
    for number, line in _whole_lines(text.splitlines()):
        if line.startswith("# IR entry: @"):
            entry = line.split("@", 1)[1].strip()
        elif line.startswith("subgraph @"):
            nodes = []
            graphs[re.match(r"subgraph @([^\s(]+)", line)[1]] = Graph(tuple(_PARAMETER.findall(line)), nodes)
        elif line.startswith("}"):
            nodes = None
        elif nodes is not None and line.startswith(("  %", "  Return(")):
            try:
                nodes.append(_node(line.strip()))
            except _UnbalancedError:
                raise DryRunError(f"{path}:{number}: brackets do not match: {line.strip()[:120]}") from None
        elif nodes and line.startswith("      # Fullname with scope: ("):
            nodes[-1] = nodes[-1]._replace(scope=line.split("(", 1)[1].rstrip()[:-1])
        elif nodes and line.startswith("      : (") and " -> " in line:
            nodes[-1] = nodes[-1]._replace(type=line.rsplit(" -> ", 1)[1].strip())
    if entry not in graphs:
        missing = f"no graph @{entry}" if entry else "no line '# IR entry: @...'"
        raise DryRunError(f"{path}: {missing}; expected a graph that mindspore saved, such as *_validate_*.ir")
    return IR(entry, graphs)


def references(arg: str) -> list[str]:
    """List the node and parameter names in the text of an input, which may be a nested tuple."""
    return _REFERENCE.findall(arg)


class _UnbalancedError(Exception):
    pass


def _whole_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; a constant's value that is printed over several lines is joined to its node's line."""
    start, pending = 0, ""
    for number, line in enumerate(lines, 1):
        if pending:
            pending = f"{pending} {line.strip()}"
            if pending.endswith("value=") or (
                pending.count("[") > pending.count("]") and not line.startswith(("  %", "}"))
            ):
                continue
            yield start, pending
            pending = ""
        elif line.endswith("value=") or (line.startswith(("  %", "  Return(")) and line.count("[") > line.count("]")):
            start, pending = number, line.rstrip()
        else:
            yield number, line
    if pending:
        yield start, pending


def _node(text: str) -> Node:
    if text.startswith("Return("):
        name, body = "Return", text
    else:
        name, _, body = text.partition(" = ")
        name = name.split("(", 1)[0]
    head = body.split("(", 1)[0].strip()
    calls: tuple[str, ...] = ()
    closure = None
    bracket = body.find("[")
    if head.startswith(("%", "call %")) and 0 <= bracket < len(head):  # %9[@Partial(@graph)](%12)
        end = _matching(body, bracket)
        calls = tuple(_CALLED.findall(body[bracket:end]))
        body = body[:bracket] + body[end + 1 :]
        head = body.split("(", 1)[0].strip()
    close = _matching(body, len(head)) if "(" in body else len(body)
    args = tuple(_split(body[len(head) + 1 : close]))
    op = head.removeprefix("call ")
    if op.startswith("@"):
        op, calls = "call", (op[1:],)
    elif op.startswith("%"):
        op, closure = "call", op
    return Node(name, _PREFIX.sub("", op), args, calls, closure, _attributes(body[close + 1 :]))


def _attributes(text: str) -> dict[str, int | str]:
    found = {}
    for kind in _ATTRIBUTES:
        at = text.find(kind)
        if at >= 0:
            start = at + len(kind) - 1
            for item in _split(text[start + 1 : _matching(text, start)]):
                name, _, value = item.partition(": ")
                found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> int | str:
    match = _NUMBER.match(text)
    return int(match[1]) if match else text.strip('"')


def _matching(text: str, start: int) -> int:
    """Find the bracket that closes the one at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in _OPEN:
            depth += 1
        elif token[0] in _CLOSE:
            depth -= 1
            if depth == 0:
                return token.start()
    raise _UnbalancedError


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    parts, depth, last = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in _OPEN:
            depth += 1
        elif token[0] in _CLOSE:
            depth -= 1
        elif depth == 0 and token[0] == ",":
            parts.append(text[last : token.start()].strip())
            last = token.end()
    parts.append(text[last:].strip())
    return [part for part in parts if part]
