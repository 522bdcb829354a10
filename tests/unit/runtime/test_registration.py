from __future__ import annotations

import json
import logging
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from health_exporter import HealthExporter
from health_exporter.errors import ReceiptError
from health_exporter.runtime.registration import (
    Registered,
    read_registered,
    registered_targets,
)

NOW = 1_700_000_000.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def registered(rank: int = 0, **changes: Any) -> Registered:
    said = {
        "run": "llama",
        "local_rank": rank,
        "world_size": 4,
        "attempt": 0,
        "host": f"gpu{rank}",
        "address": f"gpu{rank}:19400",
        "pid": 1,
        "state": "starting",
        "time": NOW,
    }
    return Registered(rank=rank, **{**said, **changes})


def read(folder: Path, run: str | None = None) -> list[Registered]:
    return read_registered(folder, run, on_damaged=pytest.fail)


def exporter(folder: Path, **settings: Any) -> HealthExporter:
    return HealthExporter(
        **{"run": "llama", "port": 0, "linger_s": 0, "receipt_dir": folder, **settings}
    )


def addresses(found: list[Registered]) -> list[str]:
    return [target.address for target in registered_targets(found)]


def test_a_rank_registers_where_it_is_and_takes_that_back_when_it_has_finished(
    tmp_path: Path,
) -> None:
    path = tmp_path / "llama" / "ranks" / "rank-5.json"
    began = time.time()

    with exporter(
        tmp_path, rank=5, local_rank=1, world_size=8, port=0, address="127.0.0.1"
    ) as rank5:
        until(path.exists)
        [found] = read(tmp_path)
        port = rank5.port

    assert found == Registered(
        run="llama",
        rank=5,
        local_rank=1,
        world_size=8,
        attempt=0,
        host=os.uname().nodename,
        address=f"127.0.0.1:{port}",
        pid=os.getpid(),
        state="starting",
        time=found.time,
    )
    assert began - 1 < found.time < time.time() + 1
    assert not path.exists()


@pytest.mark.parametrize("state", ["failed", "terminated", "interrupted"])
def test_after_any_other_end_it_stays_a_target_and_says_how_it_ended(
    tmp_path: Path, state: str
) -> None:
    rank = exporter(tmp_path)
    until((tmp_path / "llama" / "ranks" / "rank-0.json").exists)
    address = rank.address

    rank.close(state)

    [found] = read(tmp_path)
    assert (found.state, found.address) == (state, address)
    assert addresses([found]) == [address]


def test_the_end_of_one_attempt_leaves_the_registration_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "llama" / "ranks" / "rank-0.json"
    rank = exporter(tmp_path)
    until(path.exists)
    path.write_text(registered(attempt=1).text())

    rank.close()

    assert Registered.parse(path.read_text()).attempt == 1


def test_a_new_attempt_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "llama" / "ranks" / "rank-0.json"
    path.parent.mkdir(parents=True)
    path.write_text(registered(address="old:1").text())

    with exporter(tmp_path) as rank:
        until(lambda: Registered.parse(path.read_text()).address == rank.address)


def test_a_folder_that_cannot_be_written_is_said_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "ranks").write_text("a file where the folder should be")
    caplog.set_level(logging.WARNING)

    def said() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if text.startswith("registration ")]

    with exporter(tmp_path) as rank:
        until(lambda: bool(said()))
        rank.observe_step(1, 2.0)
    report = json.loads((tmp_path / "llama" / "report.json").read_text())

    assert len(said()) == 1
    assert report["status"] == "finished"
    assert report["receipt_write_failures"] == 0


def test_a_folder_that_hangs_delays_neither_the_steps_nor_the_end_for_long(tmp_path: Path) -> None:
    folder = tmp_path / "llama" / "ranks"
    folder.mkdir(parents=True)
    draft = folder / "rank-0.json.tmp"
    os.mkfifo(draft)  # opening it waits until somebody reads
    began = time.monotonic()

    with exporter(tmp_path) as rank:
        rank.observe_step(1, 2.0)

    assert time.monotonic() - began < 10
    os.close(os.open(draft, os.O_RDONLY | os.O_NONBLOCK))  # lets the thread go


def test_ranks_of_a_larger_attempt_before_are_no_targets() -> None:
    before = [registered(rank, world_size=4, time=NOW - 60) for rank in range(4)]
    # A new job counts its attempts from 0 again.
    now = [registered(rank, world_size=2, time=NOW, address=f"new{rank}:1") for rank in range(2)]

    assert addresses([*now, *before[2:]]) == ["new0:1", "new1:1"]


def test_a_rank_that_has_not_come_again_yet_stays_and_is_missed() -> None:
    found = [registered(0, attempt=1), registered(1, attempt=0, time=NOW - 60)]

    assert addresses(found) == ["gpu0:19400", "gpu1:19400"]


def test_an_address_belongs_to_the_last_that_started_there() -> None:
    old = registered(3, run="killed", address="gpu1:19400", time=NOW - 3600)
    new = registered(1, run="llama", address="gpu1:19400")

    [target] = registered_targets([new, old])

    assert (target.run, target.rank) == ("llama", 1)


def test_a_rank_without_an_endpoint_is_no_target() -> None:
    assert addresses([registered(0, address=""), registered(1)]) == ["gpu1:19400"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"run": "llama"}',
        registered().text().replace('"rank": 0', '"rank": "0"'),
    ],
)
def test_a_damaged_registration_is_passed_over_and_named(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "llama" / "ranks"
    folder.mkdir(parents=True)
    (folder / "rank-0.json").write_text(text)
    (folder / "rank-1.json").write_text(registered(1).text())
    said: list[str] = []

    found = read_registered(tmp_path, on_damaged=said.append)

    assert [rank.rank for rank in found] == [1]
    [line] = said
    assert "rank-0.json" in line


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = {**json.loads(registered().text()), "zone": "a"}

    assert Registered.parse(json.dumps(later)) == registered()


@pytest.mark.parametrize("run", ["a/b", "..", "ü b"])
def test_a_run_is_found_by_its_name_in_the_folder_of_all_and_in_its_own(
    tmp_path: Path, run: str
) -> None:
    with exporter(tmp_path, run=run) as rank:
        until(lambda: bool(list(tmp_path.glob("*/ranks/rank-0.json"))))
        [own] = tmp_path.iterdir()

        for folder in (tmp_path, own):
            [found] = read(folder, run)
            assert found.address == rank.address
        assert [found.run for found in read(own)] == [run]


def test_a_run_that_has_left_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReceiptError, match="'never'"):
        read(tmp_path, "never")


def test_rank_0_lists_who_has_registered_but_has_not_been_heard_of(tmp_path: Path) -> None:
    folder = tmp_path / "llama" / "ranks"
    folder.mkdir(parents=True)
    for rank in (1, 3, 5):
        (folder / f"rank-{rank}.json").write_text(registered(rank).text())

    with exporter(tmp_path, rank=0, world_size=4) as rank0:
        assert rank0.url is not None
        url = rank0.url.replace("/metrics", "/targets")

        def listed() -> list[str]:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return [address for entry in json.load(answer) for address in entry["targets"]]

        until(lambda: len(listed()) > 1)
        assert listed() == [rank0.address, "gpu1:19400", "gpu3:19400"]
