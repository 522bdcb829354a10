"""The shape of the alerting rules: what every alert must have, and that all names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import promql_parser
import pytest
import yaml

from health_exporter.catalog import CATALOG

ALERTS = Path(__file__).resolve().parents[3] / "alerts"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules_of(path: Path) -> list[dict[str, Any]]:
    return [rule for group in load(path)["groups"] for rule in group["rules"]]


RULES = [rule for path in sorted((ALERTS / "rules").glob("*.yml")) for rule in rules_of(path)]
ALERTING = {rule["alert"]: rule for rule in RULES if "alert" in rule}
TESTS = [test for path in sorted((ALERTS / "tests").glob("*.yml")) for test in load(path)["tests"]]
alerts = pytest.mark.parametrize("name", sorted(ALERTING))


def expectations() -> list[dict[str, Any]]:
    return [case for test in TESTS for case in test.get("alert_rule_test", ())]


@alerts
def test_an_alert_has_a_short_name_a_severity_and_a_static_summary(name: str) -> None:
    rule = ALERTING[name]
    annotations = rule["annotations"]

    assert re.fullmatch(r"TrainingHealth[A-Z][A-Za-z]+", name)
    assert len(name) <= 40
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"[A-Z][^{}]*\.", annotations["summary"])
    assert annotations["description"]


@alerts
def test_an_alert_pages_as_part_of_an_incident(name: str) -> None:
    labels = ALERTING[name]["labels"]

    assert ("incident" in labels) == (labels["severity"] == "critical")


@alerts
def test_no_value_is_in_a_label(name: str) -> None:
    assert not [text for text in ALERTING[name]["labels"].values() if "{{" in text]


@alerts
def test_an_alert_has_a_runbook_with_the_four_parts(name: str) -> None:
    url = ALERTING[name]["annotations"]["runbook_url"]
    text = (ALERTS / "runbooks" / f"{name}.md").read_text(encoding="utf-8")

    assert url.endswith(f"/{name}.md")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.M) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def test_every_runbook_is_of_an_alert() -> None:
    assert {path.stem for path in (ALERTS / "runbooks").glob("*.md")} == set(ALERTING)


@alerts
def test_an_alert_links_to_the_dashboard_of_its_run(name: str) -> None:
    url = urlsplit(ALERTING[name]["annotations"]["dashboard_url"].partition("{{")[0])

    of_no_run = name == "TrainingHealthWatchdog"
    assert url.path.rpartition("/")[2] == f"training-health-{'fleet' if of_no_run else 'run'}"
    assert url.query == ("" if of_no_run else "var-run=")


@alerts
def test_an_alert_fires_in_a_test_and_is_quiet_in_another(name: str) -> None:
    of_it = [case for case in expectations() if case["alertname"] == name]

    assert [case for case in of_it if case.get("exp_alerts")]
    assert name == "TrainingHealthWatchdog" or [c for c in of_it if not c.get("exp_alerts")]


def test_every_alert_in_the_tests_is_in_the_rules() -> None:
    named = {case["alertname"] for case in expectations()}
    named |= {
        match
        for test in TESTS
        for case in test.get("promql_expr_test", ())
        for sample in case.get("exp_samples", ())
        for match in re.findall(r'alertname="(\w+)"', sample["labels"])
    }

    assert named == set(ALERTING)


def test_every_expected_alert_names_all_labels_and_annotations() -> None:
    for case in expectations():
        for expected in case.get("exp_alerts") or ():
            rule = ALERTING[case["alertname"]]
            assert set(expected["exp_labels"]) - {"run"} == set(rule["labels"])
            assert set(expected["exp_annotations"]) == set(rule["annotations"])


def test_every_group_says_what_fires_in_it_and_that_nothing_else_does() -> None:
    """A group of series without a question passes whatever the rules are."""
    for test in TESTS:
        ever = [
            query
            for query in test.get("promql_expr_test", ())
            if re.fullmatch(
                r"group by \(alertname, run\) \(last_over_time\(ALERTS.*\[1d\]\)\)", query["expr"]
            )
        ]
        assert len(ever) == 1, test["name"]
        fired = {
            case["alertname"] for case in test.get("alert_rule_test", ()) if case.get("exp_alerts")
        }
        listed = {
            re.findall(r'alertname="(\w+)"', sample["labels"])[0]
            for sample in ever[0].get("exp_samples") or ()
        }
        assert fired - {"TrainingHealthWatchdog"} <= listed, test["name"]
        if "quiet" in test["name"]:
            assert not listed, test["name"]


def test_tests_have_names_of_their_own() -> None:
    names = [test["name"] for test in TESTS]

    assert len(set(names)) == len(names)


def metric_names(node: Any) -> set[str]:
    if isinstance(node, promql_parser.VectorSelector):
        assert node.name is not None
        return {node.name}
    children = [
        getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector", "param")
    ]
    children += list(getattr(node, "args", ()))
    return {name for child in children if child is not None for name in metric_names(child)}


def queries(rule: dict[str, Any]) -> list[str]:
    """Its expression, and those of its templates with something in place of what is printed."""
    texts = [str(text) for text in rule.get("annotations", {}).values()]
    formats = [
        found
        for text in texts
        for found in re.findall(r'printf "((?:[^"\\]|\\.)*\w{2,}[({](?:[^"\\]|\\.)*)"', text)
    ]
    filled = [
        re.sub(r"%(\[1\])?q", '"x"', text.replace('\\"', '"')).replace("%f", "1")
        for text in formats
    ]
    return [rule["expr"], *filled]


def exported() -> set[str]:
    names = set()
    for metric in CATALOG:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + end for end in ends}
    return names


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_metric_in_a_rule_is_exported_or_recorded(rule: dict[str, Any]) -> None:
    known = exported() | {rule["record"] for rule in RULES if "record" in rule}

    used = {name for query in queries(rule) for name in metric_names(promql_parser.parse(query))}

    assert used <= known, used - known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_state_status_kind_and_reason_in_a_rule_exists(rule: dict[str, Any]) -> None:
    from health_exporter.core.anomaly import KINDS
    from health_exporter.core.standing import REASONS, STATUSES
    from health_exporter.snapshot import RUN_STATES

    known = {"state": RUN_STATES, "status": STATUSES, "kind": tuple(KINDS), "reason": REASONS}
    for query in queries(rule):
        for label, values in re.findall(r'\b(state|status|kind|reason)=~?"([^"]*)"', query):
            assert set(values.split("|")) <= set(known[label])


def test_what_is_recorded_is_named_level_metric_operation_and_used() -> None:
    recorded = [rule["record"] for rule in RULES if "record" in rule]
    text = "".join(query for rule in RULES for query in queries(rule))

    assert len(set(recorded)) == len(recorded)
    for name in recorded:
        assert re.fullmatch(r"[a-z0_]+:training_health_[a-z0_]+:[a-z]+", name), name
        assert name in text


def test_groups_are_small_and_have_short_names() -> None:
    for path in (ALERTS / "rules").glob("*.yml"):
        for group in load(path)["groups"]:
            assert len(group["name"]) <= 40
            assert len(group["rules"]) <= 20, group["name"]
            assert set(group) <= {"name", "interval", "rules"}  # what Prometheus 2.42 knows
