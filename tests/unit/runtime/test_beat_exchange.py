from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from health_exporter.core.beat import Beat
from health_exporter.runtime.beat import BeatExchange
from tests.unit.export.raw_http import eventually

INTERVAL_S = 0.02


class FakeStore:
    """The store's server; each rank's connection is the same object."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.there = True
        self.connections = 0
        self.broken = False
        self.answering = threading.Event()
        self.answering.set()

    def open(self) -> FakeStore | None:
        self.connections += 1
        return self if self.there else None

    def _serve(self) -> dict[str, bytes]:
        self.answering.wait(30)
        if self.broken:
            raise ConnectionResetError("connection reset\nwith a stack trace")
        return self.values

    def set(self, key: str, value: bytes) -> None:
        self._serve()[key] = value

    def append(self, key: str, value: bytes) -> None:
        values = self._serve()
        values[key] = values.get(key, b"") + value

    def get(self, key: str) -> bytes:
        return self._serve()[key]

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        values = self._serve()
        return [values[key] for key in keys]  # a KeyError is where a real store would wait


class Rank:
    """One rank's exchange and what it was called with."""

    def __init__(
        self,
        rank: int,
        store: FakeStore | None,
        world_size: int = 2,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.rank = rank
        self.state = "running"
        self.rounds: list[tuple[Sequence[Beat], bool]] = []
        self.gone: list[Beat] = []
        self.fails: Exception | None = None
        self.exchange = BeatExchange(
            rank=rank,
            world_size=world_size,
            run="run",
            attempt=0,
            make_beat=self.make_beat,
            on_beats=self.on_beats,
            on_gone=self.gone.append,
            beat_interval_s=interval_s,
            beat_timeout_s=0.3,
            environ={},
            open_store=store.open if store is not None else None,
        )

    def make_beat(self) -> Beat:
        if self.fails is not None:
            raise self.fails
        return Beat(
            self.rank, "host", "", os.getpid(), 0, 1, 1, "", self.state, 0.0, 30.0, "", 0, ""
        )

    def on_beats(self, beats: Sequence[Beat], connected: bool) -> None:
        self.rounds.append((beats, connected))

    @property
    def seen(self) -> dict[int, Beat]:
        return {beat.rank: beat for beat in self.rounds[-1][0]} if self.rounds else {}

    @property
    def connected(self) -> bool:
        return bool(self.rounds) and self.rounds[-1][1]


StartRank = Callable[..., Rank]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def start(store: FakeStore) -> Iterator[StartRank]:
    started = []

    def start_rank(rank: int, **arguments) -> Rank:
        made = Rank(rank, store, **arguments)
        started.append(made)
        made.exchange.start()
        return made

    yield start_rank
    store.answering.set()
    for made in started:
        made.exchange.close()


def test_rank_0_sees_every_rank_that_has_come(start: StartRank):
    zero, one = start(0, world_size=3), start(1, world_size=3)
    assert eventually(lambda: set(zero.seen) == {0, 1})
    assert one.rounds == []


def test_the_count_of_beats_rises_with_every_one_sent(start: StartRank):
    zero, _ = start(0), start(1)
    assert eventually(lambda: zero.seen.get(1) is not None)
    first = zero.seen[1].beats
    assert eventually(lambda: zero.seen[1].beats > first + 3)


def test_a_rank_that_comes_first_is_seen_too(start: StartRank, store: FakeStore):
    start(1)
    assert eventually(lambda: "1" in store.values)
    zero = start(0)
    assert eventually(lambda: 1 in zero.seen)


def test_a_rank_that_came_before_rank_0_is_soon_known_to_live(start: StartRank, store: FakeStore):
    start(1, interval_s=60.0)
    assert eventually(lambda: "roster" in store.values)
    zero = start(0, interval_s=60.0)

    assert eventually(lambda: set(zero.seen) == {0, 1}, 10.0)


def test_ranks_find_each_other_long_before_the_first_interval_is_over(
    start: StartRank, store: FakeStore
):
    store.there = False
    zero, _ = (start(rank, interval_s=60.0) for rank in range(2))
    assert eventually(lambda: store.connections == 2)
    store.there = True

    assert eventually(lambda: set(zero.seen) == {0, 1}, 10.0)


def test_one_rank_alone_needs_no_store():
    alone = Rank(0, None, world_size=1)
    alone.exchange.start()
    assert eventually(lambda: len(alone.rounds) > 2)
    assert set(alone.seen) == {0}
    assert alone.connected
    assert alone.exchange.connected
    assert alone.exchange.say_goodbye("finished")
    assert alone.seen[0].state == "finished"
    alone.exchange.close()


def test_until_there_is_a_store_rank_0_has_its_own_beat_alone(start: StartRank, store: FakeStore):
    store.there = False
    zero = start(0)
    assert eventually(lambda: len(zero.rounds) > 2)
    assert set(zero.seen) == {0}
    assert not zero.connected
    store.there = True
    start(1)
    assert eventually(lambda: zero.connected and 1 in zero.seen)


def test_a_store_that_is_not_there_yet_is_no_news(
    start: StartRank, store: FakeStore, caplog: pytest.LogCaptureFixture
):
    store.there = False
    zero = start(0)
    assert eventually(lambda: store.connections > 2 and len(zero.rounds) > 10)
    assert caplog.records == []


def test_a_lost_store_is_logged_once_and_comes_back(
    start: StartRank, store: FakeStore, caplog: pytest.LogCaptureFixture
):
    zero, _ = start(0), start(1)
    assert eventually(lambda: 1 in zero.seen)
    store.broken = True
    connections = store.connections
    assert eventually(lambda: store.connections > connections + 3)
    assert eventually(lambda: not zero.exchange.connected and not zero.connected)
    assert set(zero.seen) == {0}
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    # Each of the two ranks once.
    assert len([text for text in warnings if "is gone (connection reset)" in text]) == 2
    assert len(warnings) <= 4
    store.broken = False
    assert eventually(lambda: zero.connected and 1 in zero.seen)
    assert zero.exchange.connected


def test_a_store_that_hangs_holds_up_neither_goodbye_nor_close(start: StartRank, store: FakeStore):
    zero, one = start(0), start(1)
    assert eventually(lambda: 1 in zero.seen)
    store.answering.clear()
    assert eventually(lambda: not zero.connected)
    before = len(zero.rounds)
    assert eventually(lambda: len(zero.rounds) > before + 2)  # it is judged by its own beat
    began = time.monotonic()
    assert not one.exchange.say_goodbye("finished")
    one.exchange.close(timeout_s=1.0)
    assert time.monotonic() - began < 3.5


def test_a_store_that_hung_is_used_again(start: StartRank, store: FakeStore):
    zero, _ = start(0), start(1)
    assert eventually(lambda: 1 in zero.seen)
    store.answering.clear()
    assert eventually(lambda: not zero.connected)
    store.answering.set()
    assert eventually(lambda: zero.connected and 1 in zero.seen)


def test_a_goodbye_is_sent_at_once_and_is_the_last_word(start: StartRank, store: FakeStore):
    zero, one = start(0), start(1, interval_s=60.0)
    assert eventually(lambda: "1" in store.values)
    began = time.monotonic()
    assert one.exchange.say_goodbye("finished")
    assert time.monotonic() - began < 1.0
    last = store.values["1"]
    assert Beat.decode(last).state == "finished"
    assert eventually(lambda: not one.exchange._thread.is_alive())
    one.exchange.close()
    assert eventually(lambda: 1 in zero.seen)
    assert store.values["1"] == last


def test_rank_0_still_sees_the_others_after_its_own_goodbye(start: StartRank):
    zero, one = start(0), start(1)
    assert eventually(lambda: 1 in zero.seen)
    assert zero.exchange.say_goodbye("finished")
    assert zero.seen[0].state == "finished"  # judged before the goodbye returns
    one.exchange.say_goodbye("failed")
    assert eventually(lambda: zero.seen[1].state == "failed")


def test_what_a_process_of_an_earlier_round_left_behind_is_not_believed(
    start: StartRank, store: FakeStore
):
    old = Beat(1, "host", "", 7, 40, 9, 9, "", "running", 0.0, 30.0)
    store.values = {"1": old.encode(), "roster": b"1,"}
    zero = start(0)
    assert eventually(lambda: len(zero.rounds) > 3 and zero.connected)
    assert all({beat.rank for beat in beats} == {0} for beats, _ in zero.rounds)
    start(1)
    assert eventually(lambda: 1 in zero.seen)
    assert zero.seen[1].pid == os.getpid()


@pytest.mark.parametrize("state", ["failed", "finished"])
def test_a_rank_that_ended_before_rank_0_came_is_believed(
    start: StartRank, store: FakeStore, state: str
):
    old = Beat(1, "host", "", 7, 40, 9, 9, "", state, 0.0, 30.0)
    store.values = {"1": old.encode(), "roster": b"1,"}
    zero = start(0)
    assert eventually(lambda: 1 in zero.seen)
    assert zero.seen[1].state == state


def test_ranks_of_a_larger_attempt_before_are_not_read(start: StartRank, store: FakeStore):
    start(3, world_size=4)
    assert eventually(lambda: "3" in store.values)
    zero = start(0, world_size=2)
    start(1)
    assert eventually(lambda: 1 in zero.seen)
    assert set(zero.seen) == {0, 1}


def test_garbage_under_a_key_is_no_beat_and_no_harm(
    start: StartRank, store: FakeStore, caplog: pytest.LogCaptureFixture
):
    store.values = {"1": b"\0garbage", "2": b"", "roster": b"1,2,"}
    zero = start(0, world_size=4)
    start(3, world_size=4)
    assert eventually(lambda: set(zero.seen) == {0, 3})
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_a_callback_that_fails_is_logged_once_and_the_beats_go_on(
    start: StartRank, store: FakeStore, caplog: pytest.LogCaptureFixture
):
    one = start(1)
    assert eventually(lambda: "1" in store.values)
    one.fails = ArithmeticError("no beat today")
    sent = Beat.decode(store.values["1"]).beats
    assert eventually(lambda: Beat.decode(store.values["1"]).beats > sent + 5)
    assert len([r for r in caplog.records if "beat of this rank failed" in r.getMessage()]) == 1


def test_close_is_quick_and_may_be_called_twice(start: StartRank, store: FakeStore):
    zero = start(0)
    assert eventually(lambda: zero.connected)
    began = time.monotonic()
    zero.exchange.close()
    zero.exchange.close()
    assert time.monotonic() - began < 0.5
    names = {"health-exporter-beat", "health-exporter-store", "health-exporter-probe"}
    assert not [thread for thread in threading.enumerate() if thread.name in names]


def test_after_close_there_is_no_goodbye_to_wait_for(start: StartRank):
    zero = start(0)
    zero.exchange.close()
    began = time.monotonic()
    assert not zero.exchange.say_goodbye("finished")
    assert time.monotonic() - began < 0.5


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_beats_not_and_closes_at_once(start: StartRank):
    zero = start(0)
    assert eventually(lambda: zero.connected)
    child = os.fork()
    if child == 0:
        began = time.monotonic()
        said = zero.exchange.say_goodbye("failed")
        zero.exchange.close()
        os._exit(0 if not said and time.monotonic() - began < 0.5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert zero.seen[0].state == "running"
