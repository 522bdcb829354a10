from __future__ import annotations

import logging

import pytest

from health_exporter.export.complaint import Complaints


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def complaints(clock: Clock) -> Complaints:
    return Complaints(logging.getLogger("complaints"), monotonic=clock)


def test_a_cause_is_logged_once_a_minute(
    complaints: Complaints, clock: Clock, caplog: pytest.LogCaptureFixture
):
    for clock.now in (0.0, 1.0, 59.9, 60.0, 61.0):
        complaints.warn("/metrics", "/metrics failed", OSError("no"))

    assert caplog.messages == [
        "/metrics failed: OSError('no')",
        "/metrics failed: OSError('no') (2 more since the last such line)",
    ]


def test_causes_do_not_hide_one_another(complaints: Complaints, caplog: pytest.LogCaptureFixture):
    complaints.warn("a", "a failed", OSError())
    complaints.warn("b", "b failed", OSError())

    assert len(caplog.messages) == 2


def test_a_traceback_is_there_if_it_was_asked_for(
    complaints: Complaints, caplog: pytest.LogCaptureFixture
):
    complaints.warn("a", "a failed", OSError("x"), trace=True)
    complaints.warn("b", "b failed", OSError("y"))

    assert [bool(record.exc_info) for record in caplog.records] == [True, False]
