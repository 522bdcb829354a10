"""The receipt as it is told from the files."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from health_exporter.errors import ReceiptError
from health_exporter.runtime.receipt_reader import read_receipt
from tests.unit.runtime.recorded import START, Clock, begin, kill, observe
from tests.unit.runtime.test_saved import WRONG, leaves, replaced


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The record of a run of this process that goes on; its host is called "here"."""
    run = begin(tmp_path, Clock())
    observe(run, *range(10))
    observe(run, 10, loss=math.nan)
    assert run.receipts.write(10.0)
    kill(run)
    return tmp_path / "r"


def change(folder: Path, **values: Any) -> None:
    path = folder / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def append(folder: Path, *lines: str) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(lines)


def test_the_folder_the_file_and_the_folder_above_are_the_same_receipt(folder: Path):
    receipts = [read_receipt(p, now=START) for p in (folder, folder / "report.json", folder.parent)]

    assert receipts[0] == receipts[1] == receipts[2]
    assert receipts[0]["status"] == "running"
    assert receipts[0]["path"] == str(folder / "report.json")
    assert "damaged_event_lines" not in receipts[0]


def test_a_folder_of_several_runs_names_them(folder: Path):
    begin(folder.parent, Clock(), run="second").receipts.write(10.0)

    with pytest.raises(ReceiptError, match=r"several runs.*r.*second"):
        read_receipt(folder.parent)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run": "r"}', "[" * 100_000])
def test_what_is_no_receipt_is_an_error(folder: Path, text: str):
    (folder / "report.json").write_text(text)

    with pytest.raises(ReceiptError, match=r"report\.json"):
        read_receipt(folder)


def test_what_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ReceiptError, match="does not exist"):
        read_receipt(tmp_path / "no")
    with pytest.raises(ReceiptError, match="no receipt"):
        read_receipt(tmp_path)


def test_a_receipt_of_a_newer_version_is_an_error(folder: Path):
    change(folder, schema_version=2)

    with pytest.raises(ReceiptError, match="schema_version 2"):
        read_receipt(folder)


def test_wrong_values_anywhere_in_the_report_are_an_error_or_shown(folder: Path):
    good = json.loads((folder / "report.json").read_text())
    append(folder, '{"time": 1700000001, "event": "restart", "number": 9, "step": 5}\n')
    for path in leaves(good):
        for new in WRONG:
            (folder / "report.json").write_text(json.dumps(replaced(good, path, new)))
            try:
                read_receipt(folder, now=START)
            except ReceiptError:
                continue


def test_damaged_lines_are_counted_and_left_out(folder: Path):
    append(
        folder,
        '{"time": 1700000001, "event": "anomaly", "kind": "loss_spike"}\n',
        '{"time": "never", "event": "state", "state": "failed"}\n',
        '{"time": 1700000002, "event": "anomaly", "number": 2, "kind": "nan_inf_loss", "step": 12,'
        ' "value": "NaN", "detected_at_step": 12, "baseline": null, "z_score": null}\n',
        '{"time": 1700000003, "event": "anom',
    )

    receipt = read_receipt(folder, now=START)

    assert receipt["damaged_event_lines"] == 3
    assert receipt["anomalies_by_kind"] == {"nan_inf_loss": 2}
    assert receipt["n_anomalies"] == len(receipt["anomalies"]) == 2
    assert receipt["last_step"] == 12
    assert receipt["last_sign_at"].startswith("2023-11-14T")


def test_events_that_the_report_has_already_are_not_counted_twice(folder: Path):
    receipt = read_receipt(folder, now=START)

    assert receipt["anomalies_by_kind"] == {"nan_inf_loss": 1}
    assert receipt["restarts"]["n"] == 0


def test_counters_written_after_the_report_are_counted_in(tmp_path: Path):
    clock = Clock()
    run = begin(tmp_path, clock)
    observe(run, 1, 2)
    assert run.receipts.write(10.0)
    old = (tmp_path / "r" / "report.json").read_text()
    observe(run, 3, 4)
    clock.now += 10.0
    assert run.receipts.write(10.0)
    kill(run)
    (tmp_path / "r" / "report.json").write_text(old)

    receipt = read_receipt(tmp_path / "r", now=START)

    assert (receipt["n_steps"], receipt["last_step"]) == (4, 4)
    assert receipt["goodput"] == pytest.approx(0.4)


def test_a_discontinuity_after_the_report_breaks_continuity(folder: Path):
    append(
        folder,
        '{"time": 1700000002, "event": "restart", "number": 1, "step": 8}\n'
        '{"time": 1700000002, "event": "anomaly", "number": 2, "step": 8, "value": 9.0, '
        '"kind": "restart_discontinuity", "detected_at_step": 8, "baseline": 2, "z_score": 50}\n',
    )

    receipt = read_receipt(folder, now=START)

    assert receipt["restarts"] == {"steps": [8], "continuity_ok": False, "n": 1, "lost_steps": 0}
    assert not receipt["healthy"]
    assert "restart_discontinuity x 1" in receipt["reasons"]


@pytest.mark.parametrize(("age_s", "status"), [(119.0, "running"), (121.0, "lost")])
def test_on_another_host_a_silent_run_is_lost_by_its_age(folder: Path, age_s: float, status: str):
    """Four intervals of 30 s without a sign."""
    receipt = read_receipt(folder, now=START + age_s)

    assert receipt["status"] == status
    assert (receipt["ended_at"], receipt["healthy"]) == (None, False)


def test_an_ended_run_is_never_lost(tmp_path: Path):
    run = begin(tmp_path, Clock())
    observe(run, 1)
    run.finish("failed", ValueError("bad"))

    receipt = read_receipt(tmp_path / "r", now=START + 1e6)

    assert receipt["status"] == "failed"
    assert receipt["exception"] == {"type": "ValueError", "message": "bad"}
    assert receipt["ended_at"] == "2023-11-14T22:13:20.000Z"


def test_a_run_that_was_ended_since_a_rank_had_failed_is_not_healthy(folder: Path):
    change(
        folder,
        status="terminated",
        suspects=[{"rank": 2, "host": "gpu017", "reason": "failed"}],
    )

    receipt = read_receipt(folder)

    assert not receipt["healthy"]
    assert "rank 2 failed" in receipt["reasons"]


def test_an_end_that_only_the_events_tell_is_known(folder: Path):
    """The process ended before the last report was written, on a full disk say."""
    append(
        folder,
        '{"time": 1700000005, "event": "state", "state": "failed", "step": 11,'
        ' "exception": {"type": "E", "message": "m"}}\n',
    )

    receipt = read_receipt(folder, now=START + 1e6)

    assert receipt["status"] == "failed"
    assert receipt["exception"] == {"type": "E", "message": "m"}
    assert receipt["last_step"] == 11


def test_on_this_host_the_process_is_asked_for(folder: Path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 1))
        change(folder, host=socket.gethostname(), pid=process.pid, attempt_started_at=now)
        assert read_receipt(folder, now=START + 1e6)["status"] == "running"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_receipt(folder, now=START)["status"] == "lost"  # a zombie
    assert read_receipt(folder, now=START)["status"] == "lost"


def test_a_later_process_of_the_same_number_is_not_the_run(folder: Path):
    change(folder, host=socket.gethostname(), pid=os.getpid())

    assert read_receipt(folder, now=START)["status"] == "lost"  # it began in 2023
