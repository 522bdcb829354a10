"""The committed dashboards, and what their queries consist of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "grafana" / "dashboards"
NAMES = ("fleet", "run", "ranks")

# What Grafana would put there. The values do not matter to a parser; no rule has this range.
MACROS = {
    "__rate_interval": "61s",
    "__interval_ms": "15000",
    "__interval": "15s",
    "__range": "1h",
}


def load(name: str) -> dict[str, Any]:
    """One dashboard."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels but the headings."""
    return [panel for panel in everything(dashboard) if panel["type"] != "row"]


def everything(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels and headings, folded ones too."""
    outer = dashboard["panels"]
    return [*outer, *(inner for panel in outer for inner in panel.get("panels") or [])]


@dataclass(frozen=True, slots=True)
class Expression:
    """One query, and where it stands."""

    place: str
    text: str
    instant: bool
    parsed: Any
    """Its syntax tree."""


def substitute(text: str, values: dict[str, str]) -> str:
    """`text` with Grafana's macros and variables filled in; those that are not given stay."""
    pattern = re.compile(r"\$\{(\w+)\}|\$(\w+)")
    return pattern.sub(lambda match: values.get(match[1] or match[2], match[0]), text)


def expressions(dashboard: dict[str, Any]) -> Iterator[Expression]:
    """The queries of panels and annotations; those of variables have a syntax of their own."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            place = f"{dashboard['title']}, {panel['title']}, {target['refId']}"
            yield _expression(place, target["expr"], bool(target.get("instant")))
    for mark in dashboard["annotations"]["list"]:
        place = f"{dashboard['title']}, annotation {mark['name']}"
        yield _expression(place, mark["expr"], instant=False)


def _expression(place: str, text: str, instant: bool) -> Expression:
    parsed = promql_parser.parse(substitute(text, MACROS))
    return Expression(place, text, instant, parsed)


def all_expressions() -> list[Expression]:
    """Those of all dashboards."""
    return [each for name in NAMES for each in expressions(load(name))]


def nodes(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node of a syntax tree, with the nodes that it is in, the nearest last."""
    yield tree, above
    below = [getattr(tree, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for child in [*below, *(getattr(tree, "args", None) or [])]:
        if child is not None:
            yield from nodes(child, (*above, tree))


def selectors(tree: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every choice of series in it, with the nodes that it is in."""
    for node, above in nodes(tree):
        if isinstance(node, promql_parser.VectorSelector):
            yield node, above


def matchers(selector: Any) -> dict[str, str]:
    """Label to the operator and value that it must have, such as `=~"$run"`."""
    names = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    found = selector.matchers.matchers
    return {each.name: f'{names[str(each.op).rpartition(".")[2]]}"{each.value}"' for each in found}
