"""Small mistakes that somebody could make in a rule, made from the text of the rule itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from alerts.build import duration, milliseconds

KINDS = ("threshold", "for", "range", "aggregation", "clause")
LONG_LIST = 16
"""Of a longer list of branches that are alike, the first and the last stand for all."""
SHOWN = 120
"""Characters of the line on each side of a change."""

_TOKEN = re.compile(
    r"""
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<comment>\#[^\n]*)
    | (?P<range>\[[^]]*\])
    | (?P<name>[a-zA-Z_:][\w:]*)
    | (?P<duration>\d+(?:ms|[smhd])\b)
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<operator>[=!]=|[<>]=?|[=!]~)
    | (?P<open>[({])
    | (?P<close>[)}])
    | (?P<other>\S)
    """,
    re.VERBOSE,
)
_AGGREGATION = {
    "sum": ("max",),
    "max": ("min", "count"),
    "min": ("max",),
    "count": ("max",),
    "avg": ("max",),
    "max_over_time": ("min_over_time",),
    "min_over_time": ("max_over_time",),
    "avg_over_time": ("max_over_time",),
    "count_over_time": ("max_over_time",),
    "quantile_over_time": (),  # its number is a threshold
    "increase": ("delta",),
    "rate": ("irate",),
}
_COMPARISON = {">": ">=", ">=": ">", "<": "<=", "<=": "<", "==": "!=", "!=": "=="}
_SET_OPERATORS = ("and", "or", "unless")


@dataclass(frozen=True)
class Mutant:
    """A rule with one mistake."""

    rule: str
    kind: str
    change: str
    """The line of the rule, with what differs in backticks: "before -> after"."""
    content: Mapping[str, Any]


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    depth: int
    """Of parentheses around it; a parenthesis is outside of itself."""


def name_of(rule: Mapping[str, Any]) -> str:
    """The name of an alert or of a recorded series."""
    return str(rule.get("alert") or rule["record"])


def mutants_of(rule: Mapping[str, Any]) -> list[Mutant]:
    """Every mutant of a rule; no two have the same `change`."""
    expr = rule["expr"].rstrip("\n")
    mutants = []
    counted: dict[str, int] = {}

    def add(kind: str, change: str, content: Mapping[str, Any]) -> None:
        counted[change] = counted.get(change, 0) + 1
        if counted[change] > 1:  # in two lines that read the same
            change += f" ({counted[change]})"
        mutants.append(Mutant(name_of(rule), kind, change, {**rule, **content}))

    for kind, start, end, new in _edits(expr):
        mutated = expr[:start] + new + expr[end:]
        add(kind, _marked(expr, start, end, new), {"expr": mutated})
    for key in ("for", "keep_firing_for"):
        if key in rule:
            for new in (*_other_durations(rule[key]), "0s"):
                add("for", f"{key}: `{rule[key]} -> {new}`", {key: new})
    return mutants


def without_conditions(expr: str) -> str:
    """An expression without its `and` and `unless`: where this has no value it has none, either."""
    spans = [
        (start, end)
        for operator, start, end in _clauses(_tokens(expr))
        if operator in ("and", "unless")
    ]
    return "".join(
        character
        for position, character in enumerate(expr)
        if not any(start <= position < end for start, end in spans)
    )


def _marked(expr: str, start: int, end: int, new: str) -> str:
    before = expr[:start].rpartition("\n")[2]
    after = expr[end:].partition("\n")[0]
    text = f"{before[-SHOWN:]}`{expr[start:end]} -> {new}`{after[:SHOWN]}"
    return " ".join(re.sub(r"#[^\n]*\n", "", text).split())


def _edits(expr: str) -> Iterator[tuple[str, int, int, str]]:
    """(kind, start, end, text in its place) of each mutant of an expression."""
    tokens = _tokens(expr)
    for token in _without_middle_of_long_list(tokens):
        if token.kind == "number":
            for new in _other_numbers(token.text):
                yield "threshold", token.start, token.end, new
        elif token.kind == "operator" and token.text in _COMPARISON:
            yield "threshold", token.start, token.end, _COMPARISON[token.text]
        elif token.kind in ("range", "duration"):  # [5m], [1m:15s]; offset 5m
            for found in re.finditer(r"\w+", token.text):
                for new in _other_durations(found[0]):
                    yield "range", token.start + found.start(), token.start + found.end(), new
        elif token.kind == "name":
            for new in _AGGREGATION.get(token.text, ()):
                yield "aggregation", token.start, token.end, new
    yield from _dropped_labels(tokens)
    yield from _dropped_clauses(tokens)


def _tokens(expr: str) -> list[_Token]:
    tokens = []
    depth = 0
    for found in _TOKEN.finditer(expr):
        kind = str(found.lastgroup)
        depth -= kind == "close"
        if kind != "comment":
            tokens.append(_Token(kind, found[0], found.start(), found.end(), depth))
        depth += kind == "open"
    return tokens


def _without_middle_of_long_list(tokens: list[_Token]) -> list[_Token]:
    ors = [i for i, token in enumerate(tokens) if token.text == "or" and token.depth == 0]
    if len(ors) < LONG_LIST:
        return tokens
    return tokens[: ors[0]] + tokens[ors[-1] :]


def _other_numbers(text: str) -> list[str]:
    number = float(text)
    if number == 0:
        return ["1"]
    if number <= 10 and number.is_integer():
        return [f"{number - 1:g}", f"{number + 1:g}"]
    return [f"{number / 2:g}", f"{number * 2:g}"]


def _other_durations(text: str) -> list[str]:
    return [duration(milliseconds(text) // 2), duration(milliseconds(text) * 2)]


def _dropped_labels(tokens: list[_Token]) -> Iterator[tuple[str, int, int, str]]:
    """Each label of each `by (...)` left out."""
    for i, token in enumerate(tokens):
        if token.kind == "name" and token.text == "by":
            end = next(j for j in range(i, len(tokens)) if tokens[j].kind == "close")
            labels = [label.text for label in tokens[i + 2 : end] if label.kind == "name"]
            for label in labels:
                rest = ", ".join(other for other in labels if other != label)
                yield "aggregation", token.start, tokens[end].end, f"by ({rest})"


def _dropped_clauses(tokens: list[_Token]) -> Iterator[tuple[str, int, int, str]]:
    """Each `and`, `or` and `unless` left out with what follows it, and what an `or` follows."""
    clauses = list(_clauses(tokens))
    if len(clauses) >= LONG_LIST:
        clauses = clauses[-1:]
    for operator, start, end in clauses:
        yield "clause", start, end, ""
        i = next(i for i, token in enumerate(tokens) if token.start == start)
        first = i
        while first > 0 and not _is_boundary(tokens[first - 1], tokens[i].depth, ("or",)):
            first -= 1
        if operator == "or" and (first == 0 or tokens[first - 1].text != "or"):
            after = i + 1
            if tokens[after].text in ("on", "ignoring"):
                after = 1 + next(j for j in range(i, len(tokens)) if tokens[j].kind == "close")
            yield "clause", tokens[first].start, tokens[after].start, ""


def _clauses(tokens: list[_Token]) -> Iterator[tuple[str, int, int]]:
    """Each set operator, with the span of it and its right operand."""
    for i, token in enumerate(tokens):
        if token.text in _SET_OPERATORS:
            ends = ("or",) if token.text == "or" else _SET_OPERATORS  # `or` binds loosest
            last = i
            while last + 1 < len(tokens) and not _is_boundary(tokens[last + 1], token.depth, ends):
                last += 1
            yield token.text, token.start, tokens[last].end


def _is_boundary(token: _Token, depth: int, operators: tuple[str, ...]) -> bool:
    """Whether an operand among tokens of `depth` ends here."""
    if token.depth == depth and token.kind in ("open", "close"):
        return False  # of a parenthesis within the operand
    return token.depth < depth or (
        token.depth == depth and (token.text in operators or token.text == ",")
    )
