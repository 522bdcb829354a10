"""The stand-in refuses what PagerDuty refuses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from health_exporter.demo.pager import ROUTING_KEY, Pager, PagerEvent, problems


def event(**changes: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"summary": "rank 1 is dead", "source": "r", "severity": "critical"}
    payload |= changes.pop("payload", {})
    return {
        "routing_key": ROUTING_KEY,
        "event_action": "trigger",
        "dedup_key": "k",
        "payload": {name: value for name, value in payload.items() if value is not None},
        **changes,
    }


def post(pager: Pager, body: object, path: str = "/v2/enqueue") -> tuple[int, Any]:
    request = urllib.request.Request(pager.url(path), data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"routing_key": "another"}, "routing_key"),
        ({"routing_key": None}, "routing_key"),
        ({"event_action": "page"}, "event_action"),
        ({"dedup_key": "k" * 256}, "dedup_key"),
        ({"event_action": "resolve", "dedup_key": ""}, "dedup_key"),
        ({"payload": {"summary": None}}, "payload.summary"),
        ({"payload": {"summary": ""}}, "payload.summary"),
        ({"payload": {"summary": "s" * 1025}}, "payload.summary"),
        ({"payload": {"source": None}}, "payload.source"),
        ({"payload": {"severity": None}}, "payload.severity"),
        ({"payload": {"severity": "page"}}, "payload.severity"),
    ],
)
def test_an_event_that_is_refused(changes: dict[str, Any], named: str) -> None:
    [problem] = problems(event(**changes))

    assert named in problem


@pytest.mark.parametrize("severity", ["critical", "error", "warning", "info"])
def test_an_event_that_is_accepted(severity: str) -> None:
    assert problems(event(payload={"severity": severity, "summary": "s" * 1024})) == []


@pytest.mark.parametrize("body", [None, [], "text", {**event(), "payload": None}])
def test_what_is_no_event(body: object) -> None:
    assert problems(body)


def test_an_event_larger_than_512_kb_is_refused() -> None:
    assert problems(event(), size=512 * 1024 + 1)


def test_it_answers_as_pagerduty_does() -> None:
    with Pager() as pager:
        accepted = post(pager, event())
        refused = post(pager, event(event_action="page"))

    assert accepted == (
        202,
        {"status": "success", "message": "Event processed", "dedup_key": "k"},
    )
    assert refused[0] == 400
    assert refused[1]["status"] == "invalid event"
    assert pager.refused == [refused[1]["errors"]]


def test_the_first_trigger_of_an_incident_is_its_page() -> None:
    with Pager() as pager:
        for action, key in (("trigger", "a"), ("trigger", "a"), ("trigger", "b"), ("resolve", "a")):
            post(pager, event(event_action=action, dedup_key=key))

    assert [page.dedup_key for page in pager.pages("r")] == ["a", "b"]
    assert [page.dedup_key for page in pager.open_pages("r")] == ["b"]
    assert pager.pages("another") == []


def test_an_incident_that_comes_back_is_open_again() -> None:
    with Pager() as pager:
        for action in ("trigger", "resolve", "trigger"):
            post(pager, event(event_action=action))

    assert len(pager.open_pages("r")) == 1


def test_tickets_and_the_watchdog_have_places_of_their_own() -> None:
    alert = {"labels": {"alertname": "TrainingHealthLossDrift", "run": "r"}}
    with Pager() as pager:
        post(pager, {"alerts": [alert]}, "/ticket")
        post(pager, {"alerts": []}, "/watchdog")
        status, _ = post(pager, event(), "/elsewhere")

    assert pager.ticket_alerts("r") == {"TrainingHealthLossDrift"}
    assert len(pager.watchdog_times) == 1
    assert status == 404
    assert pager.events == []


def test_it_tells_of_each_event() -> None:
    told: list[PagerEvent] = []
    with Pager(told.append) as pager:
        post(pager, event())

    assert told == pager.events
