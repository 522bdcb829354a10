"""Cases of `promtool test rules` as they would be, were their series pushed by OTLP.

What differs on that way, as test_otlp_backends.py and test_otlp_pages.py see it on real servers:

- When the pushes of a process end, however that is, its series get no stale marker, where a scrape
  that fails ends all series of its target at once.
- A process says itself which of its series are over while it goes on pushing, so that these end.
- `instance` is the run and the rank: a rank that is started again goes on with the same series.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Given = tuple[str, dict[str, str], list[str]]
"""Name, labels and values of a series."""

_OF_RANK = "training_health_rank_"

JOB = "health_exporter/trainer"
NONE, STALE = "_", "stale"

_REPEATED = re.compile(r"(?P<first>[^x+]+?)(?:(?P<step>[+-][^x+-]+))?x(?P<times>\d+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def as_pushed(cases: dict[str, Any]) -> dict[str, Any]:
    """The content of a file of cases, with the series of each as pushes would bring them."""
    return {**cases, "tests": [_pushed(case) for case in cases["tests"]]}


def _pushed(case: dict[str, Any]) -> dict[str, Any]:
    own = [one for one in case["input_series"] if "instance=" not in one["series"]]
    given = [
        (*_parsed(one["series"]), _expanded(one["values"]))
        for one in case["input_series"]
        if one not in own  # what the server itself has recorded nobody pushes
    ]
    pushing: dict[str, set[int]] = defaultdict(set)  # of each process, the moments of its pushes
    for _, labels, values in given:
        moments = (i for i, value in enumerate(values) if value not in (NONE, STALE))
        pushing[labels["instance"]].update(moments)
    merged: dict[str, list[str]] = {}
    for name, labels, values in (*_other_states(given, pushing), *given):
        process = pushing[labels["instance"]]
        arrived = [
            NONE if value == STALE and i not in process else value for i, value in enumerate(values)
        ]
        instance = f"{labels['run']}/{labels['rank'] if name.startswith(_OF_RANK) else 0}"
        series = _formatted(name, {**labels, "job": JOB, "instance": instance})
        merged[series] = _overlaid(merged.get(series, []), arrived)
    inputs = [{"series": series, "values": " ".join(values)} for series, values in merged.items()]
    return {**case, "input_series": [*own, *inputs]}


def _other_states(given: list[Given], pushing: dict[str, set[int]]) -> Iterator[Given]:
    """A process pushes all states, 0 for all but one; the cases leave most of them out."""
    states = [(name, labels) for name, labels, _ in given if name.endswith("_state")]
    known = {_formatted(name, labels) for name, labels in states}
    for (name, labels), (_, other) in itertools.product(states, repeat=2):
        also = {**labels, "state": other["state"]}
        if (series := _formatted(name, also)) not in known:
            known.add(series)
            moments = pushing[labels["instance"]]
            yield name, also, ["0" if i in moments else NONE for i in range(max(moments) + 1)]


def _parsed(series: str) -> tuple[str, dict[str, str]]:
    name, _, rest = series.partition("{")
    return name, dict(_LABEL.findall(rest))


def _formatted(name: str, labels: dict[str, str]) -> str:
    pairs = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}"


def _overlaid(earlier: list[str], later: list[str]) -> list[str]:
    """Of two processes of one rank: where both have pushed, the later one stands."""
    length = max(len(earlier), len(later))
    earlier = earlier + [NONE] * (length - len(earlier))
    later = later + [NONE] * (length - len(later))
    return [a if b == NONE else b for a, b in zip(earlier, later, strict=True)]


def _expanded(values: str | float) -> list[str]:
    """One text for each moment, of promtool's notation."""
    return [text for item in str(values).split() for text in _items(item)]


def _items(item: str) -> Iterator[str]:
    match = _REPEATED.fullmatch(item)
    if match is None:
        yield item
        return
    times = int(match["times"])
    if match["first"] == NONE:
        yield from [NONE] * times
        return
    first, step = float(match["first"]), float(match["step"] or 0)
    for i in range(times + 1):  # the first, and as many more
        yield repr(first + i * step)
