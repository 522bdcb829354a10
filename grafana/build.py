"""Renders the dashboards of this folder from source/, the metrics' catalogue and the alert rules.

    python -m grafana.build              write dashboards/*.json anew
    python -m grafana.build --check      write nothing; 1 if a file differs

Needs grafana-foundation-sdk (the extra `test`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana.source import fleet, ranks, run

HERE = Path(__file__).resolve().parent


def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard by the name of its file."""
    return {"fleet.json": fleet.build(), "run.json": run.build(), "ranks.json": ranks.build()}


def render(dashboard: dict[str, Any]) -> str:
    """The text of its file."""
    return json.dumps(dashboard, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE / "dashboards", metavar="DIR")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    args = parser.parse_args(argv)
    stale = []
    for name, dashboard in dashboards().items():
        path, text = args.out / name, render(dashboard)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not args.check:
            args.out.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if args.check and stale:
        print(f"not as build.py writes them: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
