"""Writing the record: atomic, never in the way, and never raising."""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from health_exporter.runtime.atomic_file import write_atomically
from health_exporter.runtime.receipt import ReceiptWriter, run_folder
from tests.unit.export.raw_http import eventually
from tests.unit.runtime.conftest import MakeExporter
from tests.unit.runtime.recorded import START, Clock, loads

Make = Callable[..., ReceiptWriter]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Make]:
    made: list[ReceiptWriter] = []

    def start(folder: Path = tmp_path / "r", **changes: Any) -> ReceiptWriter:
        arguments = {
            "interval_s": 1000.0,
            "make_report": lambda: {"report": 1},
            "make_state": lambda: {"state": 1},
            "make_progress": lambda: {"progress": 1},
            "wall": Clock(),
            **changes,
        }
        made.append(ReceiptWriter(folder, **arguments))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def lines(folder: Path) -> list[Any]:
    return [loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_the_first_report_is_written_at_once(writer: Make, tmp_path: Path):
    receipts = writer()

    assert eventually(lambda: receipts.written_time == START)
    for name in ("report", "state", "progress"):
        assert eventually((tmp_path / "r" / f"{name}.json").exists)
        assert loads((tmp_path / "r" / f"{name}.json").read_text()) == {name: 1}


def test_an_event_is_on_disk_when_the_call_returns(writer: Make, tmp_path: Path):
    receipts = writer()
    for number in range(5):
        receipts.event("anomaly", kind="nan_inf_loss", number=number, value=math.nan)
        assert lines(tmp_path / "r")[-1] == {
            "time": START,
            "event": "anomaly",
            "kind": "nan_inf_loss",
            "number": number,
            "value": "NaN",
        }


def test_events_reports_and_their_folder_survive_a_power_cut(
    writer: Make, tmp_path: Path, synced: list[int]
):
    receipts = writer()
    assert receipts.write(10.0)
    receipts.event("start")
    folder = tmp_path / "r"
    for name in ("events.jsonl", "state.json", "report.json"):
        assert (folder / name).stat().st_ino in synced
    assert folder.stat().st_ino in synced


def test_a_line_that_was_cut_short_is_ended_first(writer: Make, tmp_path: Path):
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "events.jsonl").write_text('{"event": "start"}\n{"event": "ano')
    writer().event("start")

    assert (folder / "events.jsonl").read_text().splitlines()[1] == '{"event": "ano'
    assert loads((folder / "events.jsonl").read_text().splitlines()[2])["event"] == "start"


def test_events_of_one_kind_are_bounded(writer: Make, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("health_exporter.runtime.receipt._MAX_EVENTS", 3)
    receipts = writer()
    for number in range(10):
        receipts.event("anomaly", kind="loss_spike", number=number)
    receipts.event("anomaly", kind="dead_rank")

    assert [e["kind"] for e in lines(tmp_path / "r")] == ["loss_spike"] * 3 + ["dead_rank"]


def test_a_folder_that_cannot_be_made_is_counted_and_said(
    writer: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("in the way")
    receipts = writer(tmp_path / "file" / "r")
    receipts.event("start")

    assert not receipts.write(10.0)
    assert receipts.failures >= 4
    assert receipts.written_time is None
    assert "could not be written" in caplog.text
    assert len(caplog.records) == 4  # once for each file


def test_a_maker_that_fails_is_counted_and_the_rest_is_written(writer: Make, tmp_path: Path):
    def fail() -> Any:
        raise RuntimeError("no report")

    receipts = writer(make_report=fail)

    assert not receipts.write(10.0)
    assert loads((tmp_path / "r" / "state.json").read_text()) == {"state": 1}
    assert not (tmp_path / "r" / "report.json").exists()


def test_a_report_that_is_no_strict_json_does_not_replace_a_good_one(writer: Make, tmp_path: Path):
    value = 1.0
    receipts = writer(make_report=lambda: {"loss": value})
    assert receipts.write(10.0)
    value = math.nan

    assert not receipts.write(10.0)
    assert loads((tmp_path / "r" / "report.json").read_text()) == {"loss": 1.0}


def test_a_full_disk_loses_nothing_that_was_there(writer: Make, tmp_path: Path):
    """Files may not grow beyond a limit for a while: a write then fails as on a full disk."""
    padding = "x"
    receipts = writer(make_report=lambda: {"padding": padding})
    receipts.event("start")
    assert receipts.write(10.0)
    before = (tmp_path / "r" / "report.json").read_text()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
        padding = "x" * 1000
        assert not receipts.write(10.0)
        for _ in range(10):
            receipts.event("start", more="y" * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    failures = receipts.failures
    assert failures >= 5
    assert (tmp_path / "r" / "report.json").read_text() == before

    receipts.event("anomaly", kind="loss_spike")
    assert receipts.write(10.0)
    assert receipts.failures == failures
    text = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    assert loads(text[0])["event"] == "start"
    assert loads(text[-1])["kind"] == "loss_spike"


def test_a_hung_disk_holds_nobody_up(writer: Make, tmp_path: Path):
    disk = threading.Event()
    receipts = writer(make_state=lambda: {"state": disk.wait(20)})
    try:
        began = time.monotonic()
        for _ in range(40):
            receipts.event("start")
            receipts.scraped()
            receipts.request()
        assert not receipts.write(0.1)
        assert time.monotonic() - began < 5.0
    finally:
        disk.set()
    assert eventually((tmp_path / "r" / "events.jsonl").exists)
    assert eventually(lambda: len(lines(tmp_path / "r")) == 40)


def test_what_the_disk_does_not_take_is_bounded(writer: Make, monkeypatch: Any):
    monkeypatch.setattr("health_exporter.runtime.receipt._MAX_QUEUED", 5)
    disk = threading.Event()
    receipts = writer(make_state=lambda: {"state": disk.wait(20)})
    try:
        for number in range(20):
            receipts.event("anomaly", kind=f"{number}")
        assert receipts.failures >= 14
    finally:
        disk.set()


def test_the_pauses_between_reports_grow_to_the_interval(writer: Make, monkeypatch: Any):
    monkeypatch.setattr("health_exporter.runtime.receipt._FIRST_PAUSE_S", 0.01)
    times: list[float] = []

    def report() -> dict[str, Any]:
        times.append(time.monotonic())
        return {}

    writer(interval_s=0.08, make_report=report)

    assert eventually(lambda: len(times) >= 8)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] < 0.06
    assert min(pauses[4:]) > 0.07


def test_what_a_scrape_saw_is_on_disk_before_it_is_answered(
    writer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("health_exporter.runtime.receipt._SCRAPE_WAIT_S", 20.0)  # a busy machine
    count = 0
    receipts = writer(make_progress=lambda: {"n": count})
    assert receipts.write(10.0)
    count = 5
    receipts.scraped()

    assert loads((tmp_path / "r" / "progress.json").read_text())["n"] == 5


def test_closed_it_writes_no_more(writer: Make, tmp_path: Path):
    receipts = writer(interval_s=0.01)
    assert receipts.write(10.0)
    receipts.close()
    receipts.close()
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "r").iterdir())
    receipts.event("start")
    receipts.request()
    receipts.scraped()

    assert not [t for t in threading.enumerate() if t.name == "health-exporter-receipts"]
    assert before == sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "r").iterdir())


def test_a_reader_sees_the_old_text_or_the_new(tmp_path: Path):
    path = tmp_path / "file.json"
    texts = [json.dumps({"text": letter * 50_000}) for letter in "ab"]
    write_atomically(path, texts[0], sync=False)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write_atomically(path, texts[number % 2], sync=number % 50 == 0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            assert path.read_text() in texts
    finally:
        stop.set()
        thread.join()
    assert os.listdir(tmp_path) == ["file.json"]


RUNS = ["llama-8b-v3", "a/b", "..", ".", "a b", "é" * 40, "%2E", "a\nb", "CON:*?", "-rf", "\\"]


def test_every_run_has_a_folder_of_its_own(tmp_path: Path):
    folders = [run_folder(tmp_path, run) for run in RUNS]

    assert len(set(folders)) == len(RUNS)
    for folder in folders:
        folder.mkdir()
        assert folder.resolve().parent == tmp_path.resolve()
    assert folders[0].name == "llama-8b-v3"


@pytest.mark.parametrize("run", RUNS)
def test_a_run_of_any_name_goes_on(make: MakeExporter, run: str):
    for _ in range(2):
        exporter = make(run=run, port=None)
        exporter.observe_step(exporter.monitor.run.last_step + 1, 1.0)
        exporter.close("terminated")
    assert exporter.report()["n_steps"] == 2


def test_an_exporter_without_a_folder_goes_on(
    make: MakeExporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("in the way")
    exporter = make(receipt_dir=tmp_path / "file")
    for step in range(3):
        exporter.observe_step(step, 1.0)
    assert exporter.snapshot().whole is not None
    exporter.close()

    assert exporter.report()["receipt_write_failures"] > 0
    assert exporter.report()["n_steps"] == 3
    assert "could not be written" in caplog.text
