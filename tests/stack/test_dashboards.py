"""Every query of the dashboards, asked of a Prometheus that has watched a run with faults."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from tests.stack.sick_run import HEALTHY, RUN, SickRun, sick_run, watching
from tests.unit.grafana.dashboard_file import (
    NAMES,
    Expression,
    expressions,
    load,
    panels,
    substitute,
)

pytestmark = pytest.mark.timeout(180)

# Scrapes are every second here.
MACROS = {"__rate_interval": "10s", "__interval": "2s", "__interval_ms": "2000"}
EVERYTHING = {"job": ".+", "host": ".+", "rank": ".+"}


@pytest.fixture(scope="module")
def sick(tmp_path_factory) -> Iterator[SickRun]:
    with sick_run(tmp_path_factory.mktemp("sick")) as run:
        yield run


def filled(text: str, run: str = RUN) -> str:
    return substitute(text, {**MACROS, **EVERYTHING, "run": run})


def answer(sick: SickRun, each: Expression) -> list[tuple[dict[str, str], list[float]]]:
    """Labels and values of each series, as Grafana asks for them."""
    run = ".+" if "fleet" in each.place else RUN
    query = filled(each.text, run)
    if each.instant:
        data = sick.prometheus.get("/api/v1/query", query=query, time=str(sick.ended))
        return [(series["metric"], [float(series["value"][1])]) for series in data["result"]]
    data = sick.prometheus.get(
        "/api/v1/query_range",
        query=query,
        start=str(sick.began),
        end=str(sick.ended),
        step="1",
    )
    return [(s["metric"], [float(value) for _, value in s["values"]]) for s in data["result"]]


def of_panel(name: str, title: str) -> list[Expression]:
    dashboard = load(name)
    place = f"{dashboard['title']}, {title}"
    return [each for each in expressions(dashboard) if each.place.rpartition(", ")[0] == place]


def texts(name: str, title: str) -> dict[str, str]:
    [panel] = [panel for panel in panels(load(name)) if panel["title"] == title]
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    return {code: each["text"] for code, each in options.items()}


def named(legend: str, labels: dict[str, str]) -> str:
    """What Grafana makes of a legend."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)


def verdict(sick: SickRun, run: str) -> str:
    """The text that the run dashboard shows now."""
    [query] = of_panel("run", "Verdict")
    [(_, value)] = sick.prometheus.query(filled(query.text, run))
    return texts("run", "Verdict")[f"{value:.0f}"]


@pytest.mark.parametrize("name", NAMES)
def test_every_query_returns_data(sick, name):
    empty = []
    for each in expressions(load(name)):
        values = [value for _, series in answer(sick, each) for value in series]
        if all(math.isnan(value) for value in values):
            empty.append(each.place)

    assert empty == []


@pytest.mark.parametrize("name", NAMES)
def test_every_series_of_a_graph_has_a_name_of_its_own(sick, name):
    for panel in panels(load(name)):
        if panel["type"] != "table":
            names = []
            for target, each in zip(panel["targets"], of_panel(name, panel["title"]), strict=True):
                names += [named(target["legendFormat"], of) for of, _ in answer(sick, each)]
            assert len(names) == len(set(names)), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_tables_rows_are_told_apart_by_their_labels_in_every_query(sick, name):
    """So that Grafana merges the answers into one row each."""
    for panel in panels(load(name)):
        if panel["type"] == "table":
            answers = [answer(sick, each) for each in of_panel(name, panel["title"])]
            common = set.intersection(*({key for row, _ in a for key in row} for a in answers))
            for found in answers:
                keys = [tuple(row.get(key) for key in sorted(common)) for row, _ in found]
                assert len(keys) == len(set(keys)), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_offers_what_there_is(sick, name):
    expected = {
        "job": {"trainer"},
        "run": {RUN, HEALTHY},
        "rank": {"0", "1", "2"},
    }
    for variable in load(name)["templating"]["list"]:
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert query
            found = sick.prometheus.get(
                f"/api/v1/label/{query[2]}/values", **{"match[]": filled(query[1])}
            )
            assert found
            assert set(found) == expected.get(variable["name"], set(found))


@pytest.mark.parametrize("name", NAMES)
def test_annotations_are_at_times_within_the_run(sick, name):
    for each in expressions(load(name)):
        if ", annotation " in each.place:
            for _, values in answer(sick, each):
                assert min(values) >= 1000 * (sick.began - 1), each.place
                assert max(values) <= 1000 * sick.ended, each.place


def test_the_verdict_names_the_cause_before_its_consequences(sick):
    assert verdict(sick, RUN) == "Rank dead"


def test_what_is_wrong_lists_every_alert_that_fires(sick):
    [query] = of_panel("run", "What is wrong")

    found = {
        labels["alertname"].removeprefix("TrainingHealth") for labels, _ in answer(sick, query)
    }

    assert {"RankDead", "LossNotFinite", "LossyResume", "ObservationsRejected"} <= found


def test_which_rank_names_the_dead_one_and_its_host(sick):
    first = of_panel("run", "Which rank")[0]

    [(labels, _)] = answer(sick, first)

    assert (labels["rank"], labels["reason"]) == ("2", "dead")
    assert labels["host"]


@pytest.mark.parametrize(
    ("title", "number"),
    [("Ranks dead or stuck", 1), ("Runs training", 2), ("Runs in trouble", 1), ("Alert rules", 1)],
)
def test_the_fleets_figures_count_what_there_is(sick, title, number):
    [query] = of_panel("fleet", title)

    [(_, values)] = answer(sick, query)

    assert values == [number]


def test_the_slowest_rank_is_found_in_the_phase_in_which_it_is_slow(sick):
    worst = of_panel("ranks", "Slowest ranks by phase")[0]

    labels, _ = max(answer(sick, worst), key=lambda row: row[1])

    assert (labels["rank"], labels["phase"]) == ("1", "data")


def test_a_healthy_run_is_called_so_and_a_finished_one_still_when_it_is_gone(sick):
    assert verdict(sick, HEALTHY) == "Healthy"

    sick.finish_the_healthy_one()
    sick.prometheus.wait_until(f'absent(training_health_step{{run="{HEALTHY}"}})')
    sick.prometheus.wait_until(f'run:training_health_ended:time{{run="{HEALTHY}"}}')

    assert verdict(sick, HEALTHY) == "Finished"


def test_without_the_rules_no_run_is_called_healthy(sick, tmp_path):
    [instance] = sick.prometheus.query(f'training_health_step{{run="{RUN}"}}')
    port = int(instance[0]["instance"].rpartition(":")[2])
    with watching(tmp_path / "prometheus", [port], rules=False) as prometheus:
        prometheus.wait_until("training_health_step")

        assert verdict(SickRun(prometheus, sick.healthy, 0), RUN) == "Rules not loaded"
