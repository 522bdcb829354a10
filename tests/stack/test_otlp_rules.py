"""The alert rules hold where metrics are pushed, too: their own cases, as pushes would look.

Pushes that stop leave no mark in Prometheus, where a scrape that fails ends a target's series at
once. What a rank that goes on pushing has no value for any more, it says itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ALERTS = Path(__file__).parents[2] / "alerts"
LONG = {"memory"}  # twelve hours of samples: half a minute of work, and little of how series end
SAID_BY_THE_RANK = re.compile(r"series: training_health_(suspect_rank|rank_exception_info)\{")


def as_pushed(case: str) -> str:
    lines = []
    said = False
    for line in case.splitlines():
        if "series:" in line:
            said = SAID_BY_THE_RANK.search(line) is not None
        if not said:
            line = re.sub(r"\bstale\b", "_", line)
        lines.append(re.sub(r'(job(?:=|: ))"?training"?', r'\1"health_exporter/trainer"', line))
    # What may fire besides in the same time is said of scraped series only: where a series ends in
    # silence instead of a mark, a rule that looks back may see it for longer.
    cases = yaml.safe_load("\n".join(lines) + "\n")
    for group in cases["tests"]:
        group.pop("promql_expr_test", None)
    return str(yaml.safe_dump(cases, sort_keys=False))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on PATH")
@pytest.mark.parametrize(
    "case",
    [path for path in sorted((ALERTS / "tests").glob("*.yml")) if path.stem not in LONG],
    ids=lambda path: path.stem,
)
def test_rules_need_no_scrape(case: Path, tmp_path: Path):
    shutil.copytree(ALERTS / "rules", tmp_path / "rules")
    (tmp_path / "tests").mkdir()
    pushed = as_pushed(case.read_text())
    assert '"training"' not in pushed
    (tmp_path / "tests" / case.name).write_text(pushed)
    done = subprocess.run(
        ["promtool", "test", "rules", case.name],
        cwd=tmp_path / "tests",
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
