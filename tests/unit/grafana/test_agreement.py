"""The dashboards say what the alert rules say: the same numbers, names, addresses and alerts."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from health_exporter.core.anomaly import KINDS
from health_exporter.core.standing import REASONS
from health_exporter.snapshot import RUN_STATES
from tests.unit.grafana.dashboard_file import NAMES, ROOT, load, panels


def alerts() -> dict[str, dict]:
    found: dict[str, dict] = {}
    for path in (ROOT / "alerts" / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            found |= {rule["alert"]: rule for rule in group["rules"] if "alert" in rule}
    return found


def values() -> dict[str, str]:
    content = yaml.safe_load((ROOT / "alerts" / "values.yaml").read_text())
    return {name: str(e["value"]) for section in content.values() for name, e in section.items()}


def panel(name: str, title: str) -> dict:
    return next(each for each in panels(load(name)) if each["title"] == title)


def steps(of: dict) -> list[float]:
    thresholds = of["fieldConfig"]["defaults"].get("thresholds", {"steps": []})
    return [step["value"] for step in thresholds["steps"][1:]]


def texts(mapping: dict) -> dict[str, str]:
    return {value: each["text"] for value, each in mapping["options"].items() if value != "match"}


def mapping_of(of: dict, column: str) -> dict[str, str]:
    for override in of["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == column:
            for each in override["properties"]:
                if each["id"] == "mappings":
                    return texts(each["value"][0])
    raise AssertionError(f"no mapping of {column}")


def verdict_codes(expr: str) -> dict[str, str]:
    """Alert to its code."""
    return dict(
        re.findall(r'ALERTS\{alertname="(\w+)",alertstate="firing"[^}]*\}\) \* 0 \+ (\d+)', expr)
    )


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_an_alerts_link_leads_to_a_dashboard_that_exists(alert):
    url = alerts()[alert]["annotations"]["dashboard_url"]

    assert re.findall(r"/d/([\w-]+)", url)[0] in {load(name)["uid"] for name in NAMES}


def test_the_run_dashboard_has_the_variable_that_alerts_set():
    names = {variable["name"] for variable in load("run")["templating"]["list"]}

    for rule in alerts().values():
        assert set(re.findall(r"var-(\w+)=", rule["annotations"]["dashboard_url"])) <= names


@pytest.mark.parametrize("name", ["fleet", "run"])
def test_every_page_is_a_verdict_with_a_text(name):
    title = {"fleet": "Verdicts over time", "run": "Verdict"}[name]
    of = panel(name, title)
    codes = verdict_codes(of["targets"][0]["expr"])
    shown = texts(of["fieldConfig"]["defaults"]["mappings"][0])
    pages = {name for name, rule in alerts().items() if rule["labels"]["severity"] == "critical"}

    assert set(codes) == pages
    assert len(set(codes.values())) == len(pages)
    assert set(codes.values()) <= set(shown)


def test_every_code_of_a_verdict_has_a_text_and_every_state_a_code():
    of = panel("run", "Verdict")
    codes = set(re.findall(r"\* 0 \+ (\d+)", of["targets"][0]["expr"]))

    assert codes == set(texts(of["fieldConfig"]["defaults"]["mappings"][0]))
    for state in RUN_STATES:
        assert f'state="{state}"' in of["targets"][0]["expr"]


@pytest.mark.parametrize(
    ("name", "title"), [("run", "What is wrong"), ("fleet", "Alerts that fire")]
)
def test_every_alert_is_shown_as_what_its_rule_says(name, title):
    shown = mapping_of(panel(name, title), "Alert")
    expected = {
        alert: rule["annotations"]["summary"]
        for alert, rule in alerts().items()
        if alert != "TrainingHealthWatchdog"
    }

    assert shown == expected


def test_every_kind_of_anomaly_is_shown_as_what_it_means():
    assert mapping_of(panel("run", "Anomalies of the whole run"), "Kind") == KINDS


def test_every_reason_for_suspicion_has_a_text():
    assert set(mapping_of(panel("run", "Which rank"), "Is")) == set(REASONS)


def test_the_receipts_age_has_the_rules_threshold():
    assert values()["receipt_age"] == "10m"
    assert steps(panel("run", "Age of the receipt")) == [600]
    assert "> 600" in alerts()["TrainingHealthReceiptNotWritten"]["expr"]


def test_the_receipts_failures_have_the_rules_threshold_and_range():
    of = panel("run", "Receipts not written")
    expr = alerts()["TrainingHealthReceiptNotWritten"]["expr"]

    assert f"[{values()['receipt_range']}]" in of["targets"][0]["expr"]
    assert f"> {steps(of)[0] + 0.5:.0f} - 0.5" in expr


def test_the_mfu_line_is_where_the_rule_fires():
    [line] = [
        target["expr"]
        for target in panel("run", "MFU over time")["targets"]
        if target["legendFormat"] == "ticket below"
    ]
    rule = alerts()["TrainingHealthMFULow"]["expr"]

    assert line.startswith(f"{values()['slow_share']} * ")
    assert f"< {values()['slow_share']}" in rule
    for text in (
        "quantile_over_time(0.5, run:training_health_mfu:ratio",
        f"[{values()['slow_range']}]",
    ):
        assert text in line
        assert text in rule


def test_the_step_time_line_is_where_the_rule_fires():
    [line] = [
        target["expr"]
        for target in panel("run", "Step time")["targets"]
        if target["legendFormat"] == "ticket above"
    ]

    assert line.endswith(f" / {values()['slow_share']}")
    assert "quantile_over_time(0.5, run:training_health_step_duration:seconds" in line
    assert f"[{values()['slow_range']}]" in line


def test_numbers_in_descriptions_are_those_of_the_rules():
    described = panel("run", "Anomalies by kind")["description"]

    for name in ("loss_spikes", "grad_norm_spikes", "spike_range"):
        assert values()[name] in described


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_without_progress_has_no_threshold_but_its_own(name):
    """The exporter says how long a rank may stand still: no number of seconds stands here."""
    for each in panels(load(name)):
        if "progress" in each["title"].lower():
            assert steps(each) in ([], [1]), each["title"]
            if steps(each) == [1]:
                assert "training_health_rank_timeout_seconds" in json.dumps(each["targets"])
