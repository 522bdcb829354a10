"""The thread that pushes: when, what a failure costs, and how it ends."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import MetricsData

from health_exporter.export import otlp_push
from health_exporter.export.otlp import Message
from health_exporter.export.otlp_event import EventQueue
from health_exporter.export.otlp_http import SendError
from health_exporter.export.otlp_push import Push

DEADLINE_S = 20.0
EMPTY = Message(MetricsData(resource_metrics=[]), (), 0)


class Deliveries:
    """A sender that tells of each push, and then does as it is told."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self.act = act
        self.times: queue.Queue[float] = queue.Queue()

    def send(self, push: Message) -> None:
        self.times.put(time.monotonic())
        self.act()

    def wait(self) -> float:
        return self.times.get(timeout=DEADLINE_S)


def refuse() -> None:
    raise SendError("HTTP 503")


class Gate:
    """What a sender waits for."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self) -> None:
        self.open.wait(DEADLINE_S)


MakePush = Callable[..., Push]


@pytest.fixture
def make() -> Iterator[MakePush]:
    made: list[Push] = []

    def make(sender: Deliveries, last: Deliveries | None = None, **arguments: Any) -> Push:
        arguments = {"target": "there", "rank": 0, "interval_s": 0.02, **arguments}
        push = Push(lambda: EMPTY, sender, last or Deliveries(), **arguments)
        made.append(push)
        return push

    yield make
    for push in made:
        push.close()


def test_pushes_at_once_and_from_then_on(make: MakePush):
    sender = Deliveries()
    make(sender).start()
    times = [sender.wait() for _ in range(4)]
    assert times == sorted(times)


def test_ranks_are_spread_over_the_interval(make: MakePush):
    firsts = []
    for rank in range(8):
        push = make(Deliveries(), rank=rank, interval_s=15.0)
        firsts.append(push._first_pause_s)
    gaps = [b - a for a, b in zip(sorted(firsts), sorted(firsts)[1:], strict=False)]
    assert all(0.0 < first <= 15.0 for first in firsts)
    assert min(gaps) > 0.8  # half of an even spread


def test_failures_are_counted_and_logged_once_a_minute(
    make: MakePush, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    sender = Deliveries(refuse)
    push = make(sender)
    push.start()
    for _ in range(6):
        sender.wait()
    assert push.failures >= 5
    (line,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "metrics could not be pushed to there: SendError('HTTP 503')" in line.getMessage()


def test_it_goes_on_when_the_collector_is_back(make: MakePush, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    arrived = threading.Event()
    sender = Deliveries(refuse)
    push = make(sender, on_pushed=arrived.set)
    push.start()
    sender.wait()
    sender.wait()
    assert not arrived.is_set()
    sender.act = lambda: None
    assert arrived.wait(DEADLINE_S)
    assert "metrics are pushed to there again" in caplog.text


def test_an_error_of_any_other_kind_ends_nothing(make: MakePush, caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ZeroDivisionError

    sender = Deliveries(fail)
    make(sender).start()
    for _ in range(3):
        sender.wait()
    assert "Traceback" in caplog.text


def test_collector_is_left_alone_for_as_long_as_it_wants(make: MakePush):
    def later() -> None:
        raise SendError("HTTP 429", retry_after_s=0.5)

    sender = Deliveries(later)
    make(sender).start()
    first, second = sender.wait(), sender.wait()
    assert second - first >= 0.5


def test_collector_cannot_ask_for_silence(make: MakePush, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(otlp_push, "_MAX_RETRY_AFTER_S", 0.05)

    def never() -> None:
        raise SendError("HTTP 503", retry_after_s=1e9)

    sender = Deliveries(never)
    make(sender).start()
    for _ in range(3):
        sender.wait()


def test_last_push_does_not_wait_for_the_one_under_way(make: MakePush):
    gate = Gate()
    sender, last = Deliveries(gate), Deliveries()
    push = make(sender, last)
    push.start()
    sender.wait()
    push.begin_flush()
    push.wait_flushed()
    assert last.times.qsize() == 1
    gate.open.set()


def test_there_is_one_last_push(make: MakePush):
    sender, last = Deliveries(), Deliveries()
    push = make(sender, last)
    push.start()
    sender.wait()
    push.begin_flush()
    push.begin_flush()
    push.wait_flushed()
    push._thread.join(DEADLINE_S)
    assert last.times.qsize() == 1


def test_last_push_is_made_where_no_thread_can_be_started(
    make: MakePush, monkeypatch: pytest.MonkeyPatch
):
    sender, last = Deliveries(), Deliveries()
    push = make(sender, last, interval_s=60.0)
    push.start()
    sender.wait()

    def refuse_to_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
    push.begin_flush()
    push.wait_flushed()
    assert last.times.qsize() == 1


def test_last_push_is_waited_for_a_limited_time(make: MakePush, monkeypatch: pytest.MonkeyPatch):
    assert otlp_push.FLUSH_S == 5.0
    monkeypatch.setattr(otlp_push, "FLUSH_S", 0.2)
    gate = Gate()
    push = make(Deliveries(), Deliveries(gate))
    push.start()
    push.begin_flush()
    began = time.monotonic()
    push.wait_flushed()
    assert 0.1 < time.monotonic() - began < 2.0
    gate.open.set()


def test_second_signal_ends_the_wait(make: MakePush):
    gate = Gate()
    last = Deliveries(gate)
    push = make(Deliveries(), last)
    push.start()
    push.begin_flush()
    last.wait()
    push.hurry()
    began = time.monotonic()
    push.wait_flushed()
    assert time.monotonic() - began < 2.0
    gate.open.set()


def test_close_without_a_flush_pushes_no_more(make: MakePush):
    sender, last = Deliveries(), Deliveries()
    push = make(sender, last, interval_s=60.0)
    push.start()
    sender.wait()
    push.close()
    push._thread.join(DEADLINE_S)
    assert (sender.times.qsize(), last.times.qsize()) == (0, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_no_thread_that_pushes(make: MakePush):
    push = make(Deliveries())
    push.start()
    child = os.fork()
    if child == 0:
        os._exit(1 if push._thread.is_alive() else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class FailingEvents(EventQueue):
    def __init__(self) -> None:
        pass

    def send(self) -> None:
        raise SendError("HTTP 404")


def test_events_that_are_refused_do_not_hold_up_metrics(make: MakePush):
    arrived = threading.Semaphore(0)
    push = make(Deliveries(), events=FailingEvents(), on_pushed=arrived.release)
    push.start()
    for _ in range(3):
        assert arrived.acquire(timeout=DEADLINE_S)
    assert push.failures >= 2
