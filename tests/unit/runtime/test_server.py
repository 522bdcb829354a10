"""Who must have seen the end before a rank goes."""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path

import pytest

from health_exporter import HealthExporter
from health_exporter.runtime.server import LastScrapes

ONE, OTHER = ("10.0.0.1", "Prometheus/3.5.3"), ("10.0.0.2", "Prometheus/3.5.3")
CURL = ("10.0.0.3", "curl/7.88.1")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scrapes(clock: Clock) -> LastScrapes:
    return LastScrapes(monotonic=clock)


def test_any_scrape_is_enough_where_nobody_came_before(scrapes: LastScrapes):
    scrapes.add(CURL, terminal=True)

    assert scrapes.done.is_set()


def test_both_of_two_servers_must_have_seen_the_end(scrapes: LastScrapes, clock: Clock):
    for _ in range(3):
        scrapes.add(ONE, terminal=False)
        clock.now += 7.0
        scrapes.add(OTHER, terminal=False)
        clock.now += 8.0
    scrapes.add(ONE, terminal=True)
    assert not scrapes.done.is_set()
    scrapes.add(ONE, terminal=True)
    assert not scrapes.done.is_set()
    scrapes.add(OTHER, terminal=True)
    assert scrapes.done.is_set()


def test_nobody_waits_for_a_single_look(scrapes: LastScrapes, clock: Clock):
    scrapes.add(ONE, terminal=False)
    scrapes.add(CURL, terminal=False)
    clock.now += 15.0
    scrapes.add(ONE, terminal=False)
    scrapes.add(ONE, terminal=True)

    assert scrapes.done.is_set()


def test_nobody_waits_for_a_server_that_comes_no_more(scrapes: LastScrapes, clock: Clock):
    for _ in range(3):
        scrapes.add(OTHER, terminal=False)
        clock.now += 15.0
    for _ in range(5):
        scrapes.add(ONE, terminal=False)
        clock.now += 15.0
    scrapes.add(ONE, terminal=True)

    assert scrapes.done.is_set()


def test_a_crowd_of_addresses_is_not_kept(scrapes: LastScrapes):
    for i in range(1000):
        for _ in range(2):
            scrapes.add((f"10.1.{i // 250}.{i % 250}", "flood"), terminal=False)
    for i in range(64):
        assert not scrapes.done.is_set()
        scrapes.add((f"10.1.0.{i}", "flood"), terminal=True)

    assert scrapes.done.is_set()


def test_an_end_waits_for_the_second_of_two_scrapers(tmp_path: Path):
    exporter = HealthExporter(
        run="r", port=0, address="127.0.0.1", receipt_dir=tmp_path, linger_s=30
    )

    def scrape(agent: str) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{exporter.port}/metrics", headers={"User-Agent": agent}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())

    for _ in range(2):
        scrape("one")
        scrape("other")
    end = threading.Thread(target=exporter.close)
    end.start()
    deadline = time.monotonic() + 20
    while 'state="finished"} 1' not in scrape("one"):
        assert time.monotonic() < deadline
    end.join(1.0)
    assert end.is_alive()
    assert 'state="finished"} 1' in scrape("other")
    end.join(20)
    assert not end.is_alive()
