"""Rules of good dashboards: those of Grafana's dashboard linter, and what went wrong for others."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest

from tests.unit.grafana.dashboard_file import NAMES, everything, load, panels

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Of Grafana's units, those that have a use here.
UNITS = {"short", "none", "locale", "s", "percentunit", "dateTimeFromNow", "string"}
PLAIN = {"timeseries", "stat", "table", "state-timeline", "heatmap"}

every_dashboard = pytest.mark.parametrize("name", NAMES)


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


@every_dashboard
def test_a_dashboard_can_be_imported_anywhere(name):
    dashboard = load(name)

    assert dashboard.get("id") is None
    assert "version" not in dashboard
    assert not {"__inputs", "__requires", "__elements"} & set(dashboard)
    assert 39 <= dashboard["schemaVersion"] <= 41
    assert re.fullmatch(r"[a-z-]{5,40}", dashboard["uid"])
    assert "${DS_" not in json.dumps(dashboard)


def test_uids_and_titles_are_unique():
    assert len({load(name)["uid"] for name in NAMES}) == len(NAMES)
    assert len({load(name)["title"] for name in NAMES}) == len(NAMES)


@every_dashboard
def test_a_dashboards_settings_suit_many_viewers(name):
    dashboard = load(name)

    assert dashboard["editable"] is False  # its file is the source
    assert dashboard["refresh"] == "30s"
    assert dashboard["timezone"] == "browser"
    assert dashboard["graphTooltip"] == 1
    assert dashboard["tags"] == ["training-health"]
    assert dashboard["description"]


@every_dashboard
def test_the_data_source_is_a_variable(name):
    first = load(name)["templating"]["list"][0]

    assert (first["type"], first["name"], first["label"]) == (
        "datasource",
        "datasource",
        "Data source",
    )
    assert first["query"] == "prometheus"


@every_dashboard
def test_nothing_names_another_data_source(name):
    def sources(value):
        if isinstance(value, dict):
            if "datasource" in value:
                yield value["datasource"]
            for each in value.values():
                yield from sources(each)
        elif isinstance(value, list):
            for each in value:
                yield from sources(each)

    found = list(sources(load(name)))

    assert found
    assert all(source == DATA_SOURCE for source in found)


@every_dashboard
def test_every_panel_target_variable_and_annotation_has_the_data_source(name):
    dashboard = load(name)
    variables = [v for v in dashboard["templating"]["list"] if v["type"] == "query"]

    for thing in [*panels(dashboard), *dashboard["annotations"]["list"], *variables]:
        assert thing["datasource"] == DATA_SOURCE
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert target["datasource"] == DATA_SOURCE


@every_dashboard
def test_variables_are_asked_again_when_the_time_range_changes(name):
    for variable in load(name)["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["refresh"] == 2
            assert variable["label"]
            assert variable["query"]["query"].startswith("label_values(training_health_")


@every_dashboard
def test_the_job_can_be_several_or_all(name):
    [job] = [v for v in load(name)["templating"]["list"] if v["name"] == "job"]

    assert (job["label"], job["multi"], job["includeAll"], job["allValue"]) == (
        "Job",
        True,
        True,
        ".+",
    )


def test_variables_follow_from_those_before_them():
    queries = {v["name"]: v["query"] for v in load("ranks")["templating"]["list"]}

    assert 'job=~"$job"' in queries["run"]["query"]
    assert 'job=~"$job",run="$run"' in queries["host"]["query"]
    assert 'run="$run",host=~"$host"' in queries["rank"]["query"]


@every_dashboard
def test_panels_have_a_title_and_say_what_good_is(name):
    for panel in panels(load(name)):
        assert panel["title"].strip(), panel["id"]
        assert len(panel["description"]) > 20, panel["title"]
        assert re.search(r"\bgood\b", panel["description"]), panel["title"]


@every_dashboard
def test_titles_are_unique(name):
    titles = [panel["title"] for panel in panels(load(name))]

    assert len(titles) == len(set(titles))


@every_dashboard
def test_panels_are_of_types_that_every_grafana_has(name):
    assert {panel["type"] for panel in panels(load(name))} <= PLAIN


@every_dashboard
def test_panels_have_a_unit_that_grafana_knows(name):
    for panel in panels(load(name)):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            for each in override["properties"]:
                if each["id"] == "unit":
                    assert each["value"] in UNITS, panel["title"]


@every_dashboard
def test_panels_say_something_when_there_is_no_data(name):
    for panel in panels(load(name)):
        assert panel["fieldConfig"]["defaults"]["noValue"].strip(), panel["title"]


@every_dashboard
def test_series_have_names_for_people(name):
    for panel in panels(load(name)):
        if panel["type"] not in ("table",):
            for target in panel["targets"]:
                assert target["legendFormat"] not in ("", "__auto"), panel["title"]


@every_dashboard
def test_queries_of_a_panel_have_names_of_their_own(name):
    for panel in panels(load(name)):
        names = [target["refId"] for target in panel["targets"]]
        assert names
        assert len(names) == len(set(names)), panel["title"]


@every_dashboard
def test_ids_are_unique(name):
    ids = [panel["id"] for panel in everything(load(name))]

    assert all(isinstance(each, int) and each > 0 for each in ids)
    assert len(ids) == len(set(ids))


@every_dashboard
def test_no_panel_lies_upon_another_or_outside_the_grid(name):
    found = everything(load(name))
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["y"] >= 0
        assert place["x"] + place["w"] <= 24, panel["title"]
    for a, b in combinations(found, 2):
        assert not overlap(a["gridPos"], b["gridPos"]), (a["title"], b["title"])


@every_dashboard
def test_no_row_of_the_grid_is_empty(name):
    found = everything(load(name))
    filled = {panel["gridPos"]["y"] + i for panel in found for i in range(panel["gridPos"]["h"])}

    assert filled == set(range(max(filled) + 1))


def test_the_run_dashboards_first_screen_fits_a_laptop():
    """Answers first: 21 rows of 38 pixels are 800, of the 950 that a browser leaves of 1080."""
    first = [p for p in load("run")["panels"] if p["gridPos"]["y"] < 21]

    assert max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in first) == 21
    assert [p["title"] for p in first][:4] == [
        "Verdict",
        "In trouble for",
        "What is wrong",
        "Which rank",
    ]
    assert {"Ranks", "Step", "Steps per minute", "MFU", "Pages firing"} <= {
        p["title"] for p in first
    }
    assert "Loss against its baseline" in {p["title"] for p in first}


@every_dashboard
def test_addresses_are_relative_and_of_our_own_dashboards(name):
    uids = {load(each)["uid"] for each in NAMES}
    text = json.dumps(load(name))
    targets = set(re.findall(r'/d/([^?"/]+)', text))

    assert "http://" not in text
    assert "https://" not in text
    assert targets <= uids


def test_rows_lead_to_the_run_and_the_rank_with_data_source_and_time():
    fleet, run = json.dumps(load("fleet")), json.dumps(load("run"))

    kept = "${datasource:queryparam}&${job:queryparam}&${__url_time_range}"
    assert f"/d/training-health-run?{kept}&var-run=${{__data.fields.Run}}" in fleet
    assert f"/d/training-health-ranks?{kept}&var-run=${{run}}" in run


@every_dashboard
def test_the_other_dashboards_are_a_click_away(name):
    [link] = load(name)["links"]

    assert link["type"] == "dashboards"
    assert link["tags"] == ["training-health"]
    assert link["includeVars"]
    assert link["keepTime"]


@every_dashboard
def test_annotations_are_at_the_times_of_the_events_themselves(name):
    marks = {mark["name"]: mark for mark in load(name)["annotations"]["list"]}

    assert set(marks) == {"Anomalies", "Starts and restarts", "Pages", "Tickets"}
    for mark in marks.values():
        assert mark["enable"]
        assert mark["useValueForTime"]
        assert mark["expr"].startswith("1000 * ")
        assert mark["target"]["expr"] == mark["expr"]


@every_dashboard
def test_no_panel_has_a_line_for_each_rank_unless_they_are_counted(name):
    for panel in panels(load(name)):
        assert "repeat" not in panel
        for target in panel["targets"]:
            if "{{rank}}" in target["legendFormat"]:
                assert target["expr"].startswith("topk(20, "), panel["title"]


@every_dashboard
def test_tables_of_ranks_and_hosts_are_bounded(name):
    for panel in panels(load(name)):
        if panel["type"] == "table" and re.search("(?i)ranks|hosts", panel["title"]):
            for target in panel["targets"]:
                assert re.search(r"\b(topk|bottomk)\(", target["expr"]), panel["title"]
