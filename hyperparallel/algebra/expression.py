"""The schedule line: its grammar, parser and printer.

schedule ::= region (">>" region)*   |   "<" region ("," region)* ">"
region   ::= skeleton ["(" names {"," key "=" value} ")"] ["*" count]
names    ::= name ("+" name)*
value    ::= name | integer | "[" integer ("," integer)* "]"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hyperparallel.algebra.skeletons import Layout, Value, registry
from hyperparallel.errors import ScheduleSyntaxError

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9_][A-Za-z0-9_.]*)|(?P<sign>>>|[-<>(),=+*\[\]]))")


class Token(NamedTuple):
    """One word or sign of a schedule line and where it starts; the last one has the text ""."""

    text: str
    at: int


@dataclass(frozen=True)
class RegionExpr:
    """One region as written: a skeleton over model parts.

    Args:
        skeleton: a registered name such as `1f1b`.
        parts: model parts it covers, in order; empty when the line leaves them to the model.
        options: `key=value` pairs as written, in order.
        count: n of `*n`, >= 1: consecutive regions its parts are cut into.
        at: position in the line, for errors; not part of equality.
    """

    skeleton: str
    parts: tuple[str, ...] = ()
    options: tuple[tuple[str, Value], ...] = ()
    count: int = 1
    at: int = field(default=0, compare=False)

    @property
    def layout(self) -> Layout:
        """Layout of the skeleton."""
        return registry()[self.skeleton].layout

    def option(self, key: str) -> Value:
        """Return the value given for `key`, or the skeleton's default."""
        return dict(self.options).get(key, registry()[self.skeleton].options[key].default)

    def __str__(self) -> str:
        inside = ["+".join(self.parts)] if self.parts else []
        inside += [f"{key}={_print_value(value)}" for key, value in self.options]
        return (
            self.skeleton + (f"({', '.join(inside)})" if inside else "") + (f"*{self.count}" if self.count > 1 else "")
        )


@dataclass(frozen=True)
class Schedule:
    """A parsed schedule line; `str()` prints it so that it parses back to an equal one.

    Example:
        >>> str(parse("transpose( vision )>>1f1b(llm)"))
        'transpose(vision) >> 1f1b(llm)'
    """

    regions: tuple[RegionExpr, ...]
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        return " >> ".join(str(region) for region in self.regions)

    def bracketed(self) -> str:
        """Print the form `<transpose(vision), 1f1b(llm)>`."""
        return "<" + ", ".join(str(region) for region in self.regions) + ">"


def parse(text: str) -> Schedule:
    """Parse a schedule line.

    Args:
        text: such as `transpose(vision, owner=roundrobin) >> 1f1b(llm)` or `<transpose, 1f1b>`.

    Raises:
        ScheduleSyntaxError: shows the line with a caret, what was expected and the nearest legal word.

    Returns:
        The schedule as written; it is not reduced and not yet tied to a model.

    Example:
        >>> [region.skeleton for region in parse("<transpose, 1f1b*2>").regions]
        ['transpose', '1f1b']
    """
    return _Parser(text).schedule()


def normal_form(schedule: Schedule) -> Schedule:
    """Join neighbouring Replicated regions with equal options: `transpose(a) >> transpose(b)` is `transpose(a+b)`.

    A count on a Replicated region changes nothing (its n pieces would all be neighbours) and is dropped.
    Source: design, section 3, "valid".
    """
    joined: list[RegionExpr] = []
    for region in schedule.regions:
        if region.layout is Layout.REPLICATED:
            region = replace(region, count=1)
            last = joined[-1] if joined else None
            if last and last.layout is Layout.REPLICATED and _can_join(last, region):
                joined[-1] = replace(last, parts=last.parts + region.parts)
                continue
        joined.append(region)
    return Schedule(tuple(joined), schedule.source)


def caret(text: str, at: int, message: str) -> str:
    """Return a message with the line and a caret under position `at`."""
    line = re.sub(r"\s", " ", text)
    return f"{message}\n  {line}\n  {' ' * at}^"


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest legal word, or an empty text."""
    near = difflib.get_close_matches(word.lower(), list(legal), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _can_join(left: RegionExpr, right: RegionExpr) -> bool:
    """Same skeleton, equal options, and parts named in both or in neither (else one region's layers get lost)."""
    if left.skeleton != right.skeleton or bool(left.parts) != bool(right.parts):
        return False
    return all(left.option(key) == right.option(key) for key in registry()[left.skeleton].options)


def _print_value(value: Value) -> str:
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


class _Parser:
    """Recursive descent over the tokens, one method per rule of the grammar."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = self._tokenize()
        self.index = 0

    def _tokenize(self) -> list[Token]:
        tokens, at, end = [], 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                self._fail(
                    at,
                    f"unexpected character {self.text[at]!r}; expected a name, a number or >> < > ( ) , = + * [ ]",
                )
            tokens.append(Token(match.group(match.lastgroup), match.start(match.lastgroup)))
            at = match.end()
        tokens.append(Token("", end))
        return tokens

    def _fail(self, at: int, message: str) -> None:
        raise ScheduleSyntaxError(caret(self.text, at, message))

    @property
    def here(self) -> Token:
        return self.tokens[self.index]

    def accept(self, text: str) -> bool:
        """Step over `text` if it is next."""
        if self.here.text == text:
            self.index += 1
            return True
        return False

    def expect(self, text: str, hint: str = "") -> None:
        """Step over `text` or fail."""
        if not self.accept(text):
            self._fail(self.here.at, f"expected {text!r}{hint}, got {self._got()}")

    def _got(self) -> str:
        return repr(self.here.text) if self.here.text else "the end of the line"

    def word(self, what: str) -> Token:
        """Take a word or fail with what it should have been."""
        token = self.here
        if not re.fullmatch(r"[A-Za-z0-9_.]+", token.text):
            self._fail(token.at, f"expected {what}, got {self._got()}")
        self.index += 1
        return token

    def integer(self, what: str) -> int:
        """Take a whole number or fail."""
        token = self.word(what)
        if not re.fullmatch(r"[0-9]{1,9}", token.text):
            self._fail(token.at, f"expected {what} (a whole number), got {token.text!r}")
        return int(token.text)

    def schedule(self) -> Schedule:
        """schedule ::= region (">>" region)* | "<" region ("," region)* ">" """
        bracketed = self.accept("<")
        separator = "," if bracketed else ">>"
        regions = [self.region()]
        while self.accept(separator):
            regions.append(self.region())
        if bracketed:
            self.expect(">", " or ','")
        if self.here.text:
            self._fail(self.here.at, f"expected {'the end' if bracketed else '>>'}, got {self._got()}")
        return Schedule(tuple(regions), self.text)

    def region(self) -> RegionExpr:
        """region ::= skeleton ["(" names {"," key "=" value} ")"] ["*" count]"""
        token = self.word("a skeleton (" + ", ".join(registry()) + ")")
        if token.text not in registry():
            hint = did_you_mean(token.text, registry())
            self._fail(token.at, f"unknown skeleton {token.text!r}; expected one of {', '.join(registry())}{hint}")
        parts: tuple[str, ...] = ()
        options: tuple[tuple[str, Value], ...] = ()
        if self.accept("("):
            parts, options = self.arguments(token.text)
        count = 1
        if self.accept("*"):
            at = self.here.at
            count = self.integer("a count")
            if count < 1:
                self._fail(at, "expected a count of at least 1, got 0")
        return RegionExpr(token.text, parts, options, count, token.at)

    def arguments(self, skeleton: str) -> tuple[tuple[str, ...], tuple[tuple[str, Value], ...]]:
        """The inside of a region's brackets: names first, then options, in either case at least one."""
        parts: list[str] = []
        options: list[tuple[str, Value]] = []
        while True:
            token = self.word("a model part" if not parts and not options else "an option key=value")
            if self.accept("="):
                options.append((token.text, self.value(skeleton, token, options)))
            elif parts or options:
                self._fail(
                    token.at,
                    f"expected key=value after the part names, got {token.text!r}; join parts with '+'",
                )
            else:
                parts = self.names(token)
            if self.accept(")"):
                return tuple(parts), tuple(options)
            self.expect(",", " or ')'")

    def names(self, first: Token) -> list[str]:
        """names ::= name ("+" name)*"""
        names = [first.text]
        while self.accept("+"):
            token = self.word("a model part")
            if token.text in names:
                self._fail(token.at, f"part {token.text!r} is named twice in one region")
            names.append(token.text)
        return names

    def value(self, skeleton: str, key: Token, seen: list[tuple[str, Value]]) -> Value:
        """value ::= name | integer | "[" integer ("," integer)* "]" , checked against the skeleton's option."""
        options = registry()[skeleton].options
        if key.text not in options:
            hint = did_you_mean(key.text, options)
            self._fail(key.at, f"{skeleton} has no option {key.text!r}; expected one of {', '.join(options)}{hint}")
        if key.text in dict(seen):
            self._fail(key.at, f"option {key.text!r} is given twice")
        at = self.here.at
        value: Value
        if self.accept("["):
            numbers = [self.integer("a list element")]
            while self.accept(","):
                numbers.append(self.integer("a list element"))
            self.expect("]", " or ','")
            value = tuple(numbers)
        else:
            text = self.word(f"a value of {key.text}").text
            value = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text
        option = options[key.text]
        if not option.accepts(value):
            words = [word.strip(",") for word in option.expected.split()]
            legal = [word for word in words if option.accepts(word)]
            hint = did_you_mean(value, legal) if isinstance(value, str) else ""
            self._fail(at, f"{key.text}={_print_value(value)} is not possible; expected {option.expected}{hint}")
        return value
