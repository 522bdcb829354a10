"""The rules and configurations are those that values.yaml and the sources make."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ALERTS = Path(__file__).resolve().parents[3] / "alerts"
SOURCES = sorted((ALERTS / "source").iterdir())


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("alerts_build", ALERTS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def values() -> dict[str, dict[str, Any]]:
    content = yaml.safe_load((ALERTS / "values.yaml").read_text(encoding="utf-8"))
    return {name: entry for section in content.values() for name, entry in section.items()}


def run_build(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ALERTS / "build.py", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_the_files_are_as_the_sources_make_them() -> None:
    done = run_build("--check")

    assert (done.returncode, done.stderr) == (0, "")


def test_every_value_has_a_reason_and_is_used(values: dict[str, dict[str, Any]]) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for name, entry in values.items():
        assert set(entry) == {"value", "why"}, name
        assert re.search(r"\w.*[.]$", entry["why"].strip(), re.S), name
        assert re.search(rf"<<{name}(:s)?>>", text), name


def test_no_rule_has_a_number_of_its_own(build: ModuleType) -> None:
    """But for 0, 1, the half that keeps a count from being missed, and the median."""
    for name in build.RULES:
        for rule in _rules(yaml.safe_load((ALERTS / "source" / f"{name}.yml").read_text())):
            text = re.sub(r'"[^"]*"|<<[^>]*>>|#.*', "", rule["expr"])
            assert set(re.findall(r"(?<![\w.])\d[\w.]*", text)) <= {"0", "1", "0.5"}, rule
            assert re.fullmatch(r"<<\w+>>", rule.get("for", "<<x>>"))


def _rules(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in content["groups"] for rule in group["rules"]]


def test_one_number_changes_all_that_depends_on_it(tmp_path: Path) -> None:
    run_build("--out", str(tmp_path), "--set", "silent_after=70s")

    text = (tmp_path / "rules" / "liveness.yml").read_text()
    assert "[70s]" in text
    assert "[40s]" not in text
    assert "[70s]" in (tmp_path / "kubernetes" / "prometheusrule.yaml").read_text()


def test_a_faster_pace_leaves_hours_alone(build: ModuleType) -> None:
    values = build.load_values(ALERTS / "values.yaml", faster=3)

    assert values["scrape_interval"] == "5s"
    assert values["group_wait"] == "1667ms"
    assert values["memory"] == "12h"


def test_an_unknown_value_is_refused() -> None:
    done = run_build("--check", "--set", "silent_afterr=70s")

    assert done.returncode == 2
    assert "silent_afterr" in done.stderr


@pytest.mark.parametrize("text", ["", "15", "s", "15 s", "1.5s", "15sm"])
def test_what_is_no_duration_is_refused(build: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        build.milliseconds(text)


def test_durations_are_written_in_the_largest_unit_that_fits(build: ModuleType) -> None:
    assert [build.duration(ms) for ms in (1, 1000, 65_000, 90_000, 43_200_000)] == [
        "1ms",
        "1s",
        "65s",
        "90s",
        "12h",
    ]


def test_the_operator_gets_the_same_rules(build: ModuleType) -> None:
    operator = yaml.safe_load((ALERTS / "kubernetes" / "prometheusrule.yaml").read_text())
    plain = [
        group
        for name in build.RULES
        for group in yaml.safe_load((ALERTS / "rules" / f"{name}.yml").read_text())["groups"]
    ]

    assert operator["kind"] == "PrometheusRule"
    assert operator["spec"]["groups"] == plain


def test_pods_that_have_failed_stay_targets() -> None:
    monitor = yaml.safe_load((ALERTS / "kubernetes" / "podmonitor.yaml").read_text())

    assert monitor["kind"] == "PodMonitor"
    assert len(monitor["spec"]["podMetricsEndpoints"]) == 8
    assert all(end["filterRunning"] is False for end in monitor["spec"]["podMetricsEndpoints"])


def test_every_matcher_is_quoted() -> None:
    """Alertmanager's old parser and its new one then read the same."""
    text = (ALERTS / "alertmanager.yml").read_text()
    config = yaml.safe_load(text)
    matchers = [m for route in config["route"]["routes"] for m in route["matchers"]]
    for rule in config["inhibit_rules"]:
        matchers += rule["source_matchers"] + rule["target_matchers"]

    assert matchers
    assert all(re.fullmatch(r'\w+ =~? "[^"]+"', matcher) for matcher in matchers)


def test_no_secret_is_in_the_repository() -> None:
    config = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())
    [pagerduty] = [r for r in config["receivers"] if r["name"] == "pagerduty"]

    for settings in pagerduty["pagerduty_configs"]:
        assert "routing_key_file" in settings
        assert "routing_key" not in settings
        assert "service_key" not in settings


def test_discovery_is_shown_in_four_ways() -> None:
    text = (ALERTS / "prometheus.yml").read_text()
    uncommented = re.sub(r"^  # (  |- )", r"  \1", text, flags=re.M)
    config = yaml.safe_load(uncommented)

    kinds = {key for job in config["scrape_configs"] for key in job if key.endswith("_configs")}
    assert kinds - {"relabel_configs"} == {
        "static_configs",
        "file_sd_configs",
        "http_sd_configs",
        "kubernetes_sd_configs",
    }
