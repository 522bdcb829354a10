from __future__ import annotations

import json

import numpy as np
import pytest

from health_exporter import Anomaly, TrainingHealthMonitor


def beaten(*ranks, step=10, threshold=5):
    monitor = TrainingHealthMonitor(rank_heartbeat_threshold=threshold)
    for rank in ranks:
        monitor.observe_rank_step(rank, step)
    return monitor


def outages(monitor):
    return monitor.report()["outages"]


def test_a_rank_is_dead_after_more_steps_than_the_threshold():
    monitor = beaten("a")
    assert monitor.check_rank_liveness(15) == []
    assert monitor.check_rank_liveness(16) == [
        Anomaly(10, "dead_rank", 6.0, 5.0, None, 16, rank="a")
    ]


def test_a_threshold_of_zero_allows_no_step():
    monitor = beaten("a", threshold=0)
    assert monitor.check_rank_liveness(10) == []
    assert len(monitor.check_rank_liveness(11)) == 1


def test_dead_ranks_are_booked():
    monitor = beaten("a", "b")
    found = monitor.check_rank_liveness(16)
    assert monitor.anomalies == found
    assert monitor.report()["anomalies_by_kind"] == {"dead_rank": 2}
    assert [anomaly["rank"] for anomaly in monitor.report()["anomalies"]] == ["a", "b"]


def test_an_outage_is_flagged_once():
    monitor = beaten("a")
    monitor.check_rank_liveness(16)
    assert monitor.check_rank_liveness(17) == []
    assert monitor.check_rank_liveness(1000) == []
    assert len(outages(monitor)) == 1


def test_only_the_silent_rank_is_flagged():
    monitor = beaten("a", "b")
    monitor.observe_rank_step("b", 16)
    assert [anomaly.rank for anomaly in monitor.check_rank_liveness(16)] == ["a"]


def test_a_recovered_rank_can_die_again():
    monitor = beaten("a")
    monitor.check_rank_liveness(16)
    monitor.observe_rank_step("a", 20)
    assert monitor.check_rank_liveness(25) == []
    assert [anomaly.step for anomaly in monitor.check_rank_liveness(26)] == [20]


def test_the_report_lists_each_outage_by_rank():
    monitor = beaten("a", "b")
    monitor.observe_rank_step("b", 16)
    monitor.check_rank_liveness(16)
    monitor.observe_rank_step("a", 20)
    monitor.check_rank_liveness(30)
    assert outages(monitor) == [
        {"rank": "a", "last_step": 10, "detected_at_step": 16, "recovered_at_step": 20},
        {"rank": "a", "last_step": 20, "detected_at_step": 30, "recovered_at_step": None},
        {"rank": "b", "last_step": 16, "detected_at_step": 30, "recovered_at_step": None},
    ]


def test_a_rank_that_does_not_come_back_after_a_restart_is_not_dead():
    monitor = beaten("a", "b")
    monitor.observe_step(11, 1.0, restart=True)
    monitor.observe_rank_step("a", 11)
    monitor.observe_rank_step("a", 30)
    assert monitor.check_rank_liveness(30) == []


def test_a_step_that_is_no_restart_forgets_no_rank():
    monitor = beaten("a")
    monitor.observe_step(11, 1.0)
    assert len(monitor.check_rank_liveness(16)) == 1


def test_ranks_go_back_with_a_restart():
    monitor = beaten("a")
    monitor.observe_step(5, 1.0, restart=True)
    monitor.observe_rank_step("a", 5)
    assert monitor.check_rank_liveness(5) == []


def test_an_outage_may_end_in_the_next_attempt():
    monitor = beaten("a")
    monitor.check_rank_liveness(16)
    monitor.observe_step(8, 1.0, restart=True)
    monitor.observe_rank_step("a", 8)
    assert outages(monitor)[0]["recovered_at_step"] == 8
    assert [anomaly.step for anomaly in monitor.check_rank_liveness(14)] == [8]


def test_an_outage_may_end_in_the_next_process():
    monitor = beaten("a")
    monitor.check_rank_liveness(16)
    later = TrainingHealthMonitor(rank_heartbeat_threshold=5)
    later.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
    later.observe_rank_step("a", 8)
    assert outages(later) == [
        {"rank": "a", "last_step": 10, "detected_at_step": 16, "recovered_at_step": 8}
    ]
    assert [anomaly.step for anomaly in later.check_rank_liveness(14)] == [8]


def test_an_outage_that_ended_stays_as_it_was_in_the_next_process():
    monitor = beaten("a")
    monitor.check_rank_liveness(16)
    monitor.observe_rank_step("a", 20)
    later = TrainingHealthMonitor(rank_heartbeat_threshold=5)
    later.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
    later.observe_rank_step("a", 25)
    assert outages(later) == outages(monitor)


def test_who_was_seen_is_not_carried_into_the_next_process():
    later = TrainingHealthMonitor(rank_heartbeat_threshold=5)
    later.load_state_dict(beaten("a").state_dict())
    assert later.check_rank_liveness(1000) == []
    assert later.check_rank_liveness(0) == []


def test_only_the_newest_outages_are_listed():
    monitor = TrainingHealthMonitor(rank_heartbeat_threshold=0)
    for step in range(0, 4004, 2):
        monitor.observe_rank_step("a", step)
        monitor.check_rank_liveness(step + 1)
    listed = outages(monitor)
    assert len(listed) == 1000
    assert listed[-1]["last_step"] == 4002
    assert monitor.report()["dropped"]["outages"] == 1002


def test_the_count_of_outages_survives_a_restart():
    monitor = TrainingHealthMonitor(rank_heartbeat_threshold=0)
    for step in range(0, 2400, 2):
        monitor.observe_rank_step("a", step)
        monitor.check_rank_liveness(step + 1)
    later = TrainingHealthMonitor()
    later.load_state_dict(monitor.state_dict())
    assert later.report()["dropped"]["outages"] == 200


@pytest.mark.parametrize("rank", [3, np.int64(3), np.array(3), "3"])
def test_an_integer_is_the_name_that_it_prints_as(rank):
    (anomaly,) = beaten(rank).check_rank_liveness(100)
    assert anomaly.rank == "3"


@pytest.mark.parametrize(
    ("rank", "step", "error", "message"),
    [
        ("", 11, ValueError, "rank must not be empty"),
        (None, 11, TypeError, "rank must be an integer, got None"),
        (True, 11, TypeError, "rank must be an integer, got True"),
        (1.0, 11, TypeError, "rank must be an integer, got 1.0"),
        ("a", 11.0, TypeError, "step must be an integer, got 11.0"),
        ("a", True, TypeError, "step must be an integer, got True"),
        ("a", -1, ValueError, "step must be >= 0, got -1"),
        ("a", 2**63, ValueError, "step must fit in 64 bits"),
        ("a", 10, ValueError, "step of rank 'a' must be > 10, its last one, got 10"),
        ("a", 9, ValueError, "step of rank 'a' must be > 10, its last one, got 9"),
    ],
)
def test_a_bad_heartbeat_is_refused_and_not_recorded(rank, step, error, message):
    monitor = beaten("a")
    with pytest.raises(error, match=message):
        monitor.observe_rank_step(rank, step)
    assert [a.rank for a in monitor.check_rank_liveness(16)] == ["a"]


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (None, TypeError, "current_step must be an integer, got None"),
        (20.0, TypeError, "current_step must be an integer, got 20.0"),
        (-1, ValueError, "current_step must be >= 0, got -1"),
        (9, ValueError, "current_step must be >= 10, which a rank has reported, got 9"),
        (2**64, ValueError, "current_step must fit in 64 bits"),
    ],
)
def test_a_bad_check_is_refused(step, error, message):
    monitor = beaten("b", "a")
    monitor.observe_rank_step("c", 3)
    with pytest.raises(error, match=message):
        monitor.check_rank_liveness(step)
    assert monitor.anomalies == []
