"""The alert rules hold where metrics are pushed, too: their own cases, as pushes would bring them.

What differs on that way alone is in alerts/tests/pushed.yml.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.stack.pushed_series import as_pushed

ALERTS = Path(__file__).parents[2] / "alerts"
# What begins or ends up to a minute sooner or later than on scraped series: when the same is asked.
OTHER_TIMES = {
    # A mean over some minutes runs on through both processes, as their instance is one; of scraped
    # ones it is the higher of two.
    "MFULow: also when the drop comes with a new process, from the last of the old one on": {
        "1h44m30s": "1h43m45s"
    },
    # Killed ranks that stood still are shown as such until they are known to be dead.
    "A stuck run that its launcher kills is the same incident, without a gap": {"12m15s": "12m45s"},
}

# Not those of the rules' memory, which are of twelve hours: half a minute of work each, and what is
# shown for five minutes more is remembered for five minutes more.
FILES = sorted((ALERTS / "tests").glob("*.yml"))
CASES = [path for path in FILES if not path.stem.startswith("memory")]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_same_alerts_fire_on_pushed_series_and_no_others(path: Path, tmp_path: Path):
    shutil.copytree(ALERTS / "rules", tmp_path / "rules")
    cases = tmp_path / "tests" / path.name
    cases.parent.mkdir()
    content = as_pushed(yaml.safe_load(path.read_text()))
    for case in content["tests"]:
        other = OTHER_TIMES.get(case["name"], {})
        for asked in (*case.get("alert_rule_test", ()), *case.get("promql_expr_test", ())):
            asked["eval_time"] = other.get(asked["eval_time"], asked["eval_time"])
    cases.write_text(yaml.safe_dump(content, sort_keys=False))
    done = subprocess.run(
        ["promtool", "test", "rules", path.name],
        cwd=cases.parent,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def series(name: str, **labels: str) -> str:
    pairs = (f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"training_health_{name}{{{', '.join(pairs)}}}"


def test_a_rank_that_fails_and_is_started_again_as_it_is_pushed():
    before = {"run": "r", "rank": "1", "job": "t", "instance": "b:0"}
    after = {**before, "instance": "c:0"}
    rank = {"run": "r", "rank": "1", "job": "health_exporter/trainer", "instance": "r/1"}
    scraped = {
        series("rank_state", state="running", **before): "1x1 0 stale _x4",
        series("rank_state", state="failed", **before): "0x1 1 stale _x4",
        series("rank_info", host="x", **before): "1x2 stale _x4",
        series("rank_step", **before): "5+2x2 stale _x4",
        series("suspect", **before): "_ 1 stale _x5",
        series("rank_state", state="running", **after): "_x5 1x2",
        series("rank_step", **after): "_x5 9x2",
        series("run_state", state="running", run="r", job="t", instance="a:0"): "1x2",
    }
    given = [{"series": name, "values": values} for name, values in scraped.items()]
    (case,) = as_pushed({"tests": [{"input_series": given}]})["tests"]
    pushed = {one["series"]: one["values"].rstrip(" _") for one in case["input_series"]}
    rank_0 = {**rank, "instance": "r/0"}
    del rank_0["rank"]
    assert pushed == {
        # All processes of a rank push the same series, every state among them; none says when it
        # ends,
        series("rank_state", state="running", **rank): "1.0 1.0 0 _ _ 1.0 1.0 1.0",
        series("rank_state", state="failed", **rank): "0.0 0.0 1 _ _ 0 0 0",
        series("rank_info", host="x", **rank): "1.0 1.0 1.0",
        series("rank_step", **rank): "5.0 7.0 9.0 _ _ 9.0 9.0 9.0",
        # but what it has no value for any more is over.
        series("suspect", **{**rank, "instance": "r/0"}): "_ 1 stale",
        series("run_state", state="running", **rank_0): "1.0 1.0 1.0",
        series("run_state", state="failed", **rank_0): "0 0 0",
    }
