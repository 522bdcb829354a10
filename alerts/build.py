"""Renders the rules and configurations of this folder from source/ and values.yaml.

    python build.py                          write all files anew
    python build.py --out DIR --faster 3     elsewhere, with scrapes every 5 s and all in proportion
    python build.py --set silent_after=60s   with another value, for once

A source has `<<name>>` for the value, `<<name:s>>` for a duration in seconds, and
`<<ranks(series)>>` for a text of source/snippets.yaml, in which `SERIES` is replaced.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
RULES = ("liveness", "training", "exporter")
NAMED_RANKS = 64
"""As many as rank 0 names at most."""

_HEADER = "# Written by build.py from source/{} and values.yaml: change it there.\n"
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(duration: str) -> int:
    """A Prometheus duration, such as 15s or 1h30m, in milliseconds.

    Raises:
        ValueError: It is none.
    """
    parts = re.findall(r"(\d+)(ms|[smhd])", duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"{duration!r} is no duration")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)


def duration(ms: int) -> str:
    """Milliseconds as a Prometheus duration, in the largest unit that divides them."""
    for unit, size in sorted(_UNITS_MS.items(), key=lambda item: -item[1]):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    raise AssertionError("a millisecond divides everything")


def load_values(
    path: Path, *, faster: float = 1, changes: Mapping[str, str] = {}
) -> dict[str, str]:
    """Name to value, as text.

    Args:
        path: values.yaml.
        faster: What the durations under `pace` are divided by.
        changes: Values that win, already as they shall be.

    Raises:
        ValueError: A change names no value.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    values: dict[str, str] = {}
    for section, entries in content.items():
        for name, entry in entries.items():
            value = str(entry["value"])
            if section == "pace" and faster != 1:
                value = duration(round(milliseconds(value) / faster))
            values[name] = value
    unknown = sorted(set(changes) - set(values))
    if unknown:
        raise ValueError(f"values.yaml has no {', '.join(unknown)}")
    values["rank_numbers"] = _rank_numbers()
    return {**values, **changes}


def _rank_numbers() -> str:
    """A vector of the numbers of ranks, each with its number as its label."""
    numbers = (f'label_replace(vector({n}), "rank", "{n}", "", "")' for n in range(NAMED_RANKS))
    return " or ".join(numbers)


def render(text: str, values: Mapping[str, str], snippets: Mapping[str, str]) -> str:
    """`text` with its placeholders filled in.

    Raises:
        KeyError: There is no such value or snippet.
    """

    def fill_snippet(match: re.Match[str]) -> str:
        return "".join(snippets[match[1]].replace("SERIES", match[2]).splitlines())

    def fill(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value if match[2] is None else f"{milliseconds(value) / 1000:g}"

    snippet = re.compile(r"<<(\w+)\(([^)]*)\)>>")
    while snippet.search(text):  # they may be nested
        text = snippet.sub(fill_snippet, text)
    return re.sub(r"<<(\w+)(:s)?>>", fill, text)


def build(source: Path, values: Mapping[str, str]) -> dict[str, str]:
    """Every file that is written, by its path relative to the folder."""
    snippets = yaml.safe_load((source / "snippets.yaml").read_text(encoding="utf-8"))
    files = {}
    for name in (*(f"rules/{rules}.yml" for rules in RULES), "prometheus.yml", "alertmanager.yml"):
        origin = name.rpartition("/")[2]
        text = render((source / origin).read_text(encoding="utf-8"), values, snippets)
        files[name] = _HEADER.format(origin) + text
    for origin in ("podmonitor.yaml", "prometheusrule.yaml"):
        text = render((source / origin).read_text(encoding="utf-8"), values, snippets)
        if origin == "prometheusrule.yaml":
            text += "".join(_groups(files[f"rules/{rules}.yml"]) for rules in RULES)
        files[f"kubernetes/{origin}"] = _HEADER.format(origin) + text
    return files


def _groups(rules: str) -> str:
    """The groups of a rule file, indented as in a PrometheusRule."""
    lines = rules.partition("groups:\n")[2].splitlines()
    return "".join(f"  {line}\n" if line else "\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=Path, default=HERE / "values.yaml", metavar="FILE")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR")
    parser.add_argument("--faster", type=float, default=1.0, metavar="N")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if files differ")
    args = parser.parse_args(argv)
    changes = dict(change.partition("=")[::2] for change in args.set)
    try:
        values = load_values(args.values, faster=args.faster, changes=changes)
    except ValueError as error:
        parser.error(str(error))
    stale = []
    for name, text in build(HERE / "source", values).items():
        path = args.out / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if args.check and stale:
        print(f"not as build.py writes them: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
