"""The dashboards' queries: they parse, and ask for what there is."""

from __future__ import annotations

import re
from datetime import timedelta

import promql_parser
import pytest
import yaml

from health_exporter.catalog import CATALOG
from tests.unit.grafana.dashboard_file import (
    NAMES,
    ROOT,
    Expression,
    all_expressions,
    load,
    matchers,
    nodes,
    selectors,
)

RULES = ROOT / "alerts" / "rules"
BY_NAME = {metric.name: metric for metric in CATALOG}
COUNTERS = {metric.name for metric in CATALOG if metric.kind == "counter"}
HISTOGRAMS = {metric.name for metric in CATALOG if metric.kind == "histogram"}
BUCKETS = {f"{name}{part}" for name in HISTOGRAMS for part in ("_bucket", "_sum", "_count")}
ALERT_SERIES = {"ALERTS", "ALERTS_FOR_STATE"}
GRAFANAS_INTERVAL = timedelta(seconds=61)  # see MACROS


@pytest.fixture(scope="module", name="queries")
def every_query() -> list[Expression]:
    """Of all dashboards; that they parse is the first thing to know of them."""
    return all_expressions()


def recorded() -> set[str]:
    names = set()
    for path in RULES.glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            names |= {rule["record"] for rule in group["rules"] if "record" in rule}
    return names


def rates(tree):
    """Calls of rate and its kin, and the ranges that they are over."""
    for node, _ in nodes(tree):
        if isinstance(node, promql_parser.Call) and node.func.name in ("rate", "irate", "increase"):
            yield node.args[0]


def values() -> dict[str, str]:
    content = yaml.safe_load((ROOT / "alerts" / "values.yaml").read_text())
    return {name: str(e["value"]) for section in content.values() for name, e in section.items()}


def test_queries_ask_for_series_of_the_catalogue_or_of_a_rule(queries):
    known = set(BY_NAME) - HISTOGRAMS | BUCKETS | recorded() | ALERT_SERIES

    for each in queries:
        names = {selector.name for selector, _ in selectors(each.parsed)}
        assert names, each.place
        assert names <= known, each.place


def test_queries_ask_for_labels_that_the_series_have(queries):
    for each in queries:
        for selector, _ in selectors(each.parsed):
            if selector.name in BY_NAME:
                labels = {"job", "instance", *BY_NAME[selector.name].all_labels}
                assert set(matchers(selector)) <= labels, each.place


def test_queries_are_about_the_chosen_runs(queries):
    for each in queries:
        run = '=~"$run"' if "fleet" in each.place else '="$run"'
        for selector, _ in selectors(each.parsed):
            chosen = matchers(selector)
            # The watchdog is about Prometheus itself.
            if chosen.get("alertname") != '="TrainingHealthWatchdog"':
                assert chosen.get("run") == run, (each.place, selector.name)


def test_queries_of_what_is_scraped_are_about_the_chosen_jobs(queries):
    """Rules and alerts are by run, and have no job."""
    scraped = set(BY_NAME) | BUCKETS
    for each in queries:
        for selector, _ in selectors(each.parsed):
            has_job = matchers(selector).get("job") == '=~"$job"'
            assert has_job == (selector.name in scraped), (each.place, selector.name)


def test_counters_are_asked_for_their_rate_or_for_the_whole_runs_total_now(queries):
    """Of those that go on over restarts, the value is the total of the run."""
    for each in queries:
        for selector, above in selectors(each.parsed):
            if selector.name in COUNTERS | BUCKETS:
                functions = {n.func.name for n in above if isinstance(n, promql_parser.Call)}
                total = each.instant and BY_NAME[selector.name].carried_over
                assert functions & {"rate", "increase"} or total, (each.place, selector.name)


def test_rates_over_time_have_grafanas_interval(queries):
    for each in queries:
        if not each.instant:
            for over in rates(each.parsed):
                assert over.range == GRAFANAS_INTERVAL, each.place


def test_rates_of_now_have_grafanas_interval_or_that_of_a_rule(queries):
    minutes = (values()[name].removesuffix("m") for name in ("speed_range", "receipt_range"))
    allowed = {GRAFANAS_INTERVAL, *(timedelta(minutes=int(number)) for number in minutes)}
    for each in queries:
        assert {over.range for over in rates(each.parsed)} <= allowed, each.place


def test_rates_are_of_counters_and_taken_before_anything_is_added(queries):
    for each in queries:
        for over in rates(each.parsed):
            assert isinstance(over, promql_parser.MatrixSelector), each.place
            assert over.vector_selector.name in COUNTERS | BUCKETS, each.place


@pytest.mark.parametrize("name", NAMES)
def test_a_variables_series_are_of_the_catalogue(name):
    for variable in load(name)["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(
                r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"]
            )
            assert match
            assert match[2] in ("job", *BY_NAME[match[1]].all_labels)


def test_every_metric_is_shown_somewhere(queries):
    """One that no dashboard shows is one that nobody sees."""
    shown = {selector.name for each in queries for selector, _ in selectors(each.parsed)}
    shown |= {name.removesuffix("_bucket") for name in shown}
    # MFU is their quotient; the exception's type is in the page, the progress in the heartbeat.
    left_out = {
        "training_health_model_flops_per_second",
        "training_health_peak_flops_per_second",
        "training_health_rank_exception_info",
        "training_health_rank_progress_total",
    }

    assert set(BY_NAME) - shown == left_out
