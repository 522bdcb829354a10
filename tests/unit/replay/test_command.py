"""The command as people run it."""

from __future__ import annotations

import gzip
import json
import math
import os
import pty
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from health_exporter.cli import main
from tests.unit.replay.log import write

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command: exit status, standard output, standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        status = main(["replay", *map(str, args)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def nanogpt(
    steps: Iterable[int], *, spike: int = -1, nan: int = -1, seed: int = 0, offset: float = 0.0
) -> str:
    draw = random.Random(seed)
    lines = []
    for n in steps:
        loss = 2.5 + 5.0 / (1.0 + n / 50) + draw.gauss(0, 0.02) + offset
        loss = loss + 4.0 if n == spike else math.nan if n == nan else loss
        lines.append(f"iter {n}: loss {loss:.4f}, time {200 + draw.random():.2f}ms, mfu 40.00%\n")
    return "".join(lines)


def test_a_healthy_run(tmp_path: Path, replay: Run) -> None:
    status, out, err = replay(write(tmp_path / "train.log", nanogpt(range(400))))
    assert status == 0
    assert err == ""
    assert "nanoGPT-style text" in out
    assert "healthy" in out
    assert "400 judged, from 0 to 399" in out


def test_a_spike_is_told_and_is_no_reason_to_fail(tmp_path: Path, replay: Run) -> None:
    log = write(tmp_path / "train.log", nanogpt(range(400), spike=300))
    status, out, _ = replay(log)
    assert status == 0
    assert "loss_spike" in out
    assert "line 301" in out


def test_nan_is_a_reason_to_fail(tmp_path: Path, replay: Run) -> None:
    log = write(tmp_path / "train.log", nanogpt(range(400), nan=300))
    status, out, _ = replay(log, "--json")
    assert status == 1
    report = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["healthy"] is False
    assert report["reasons"] == ["nan_inf_loss x 1"]
    (event,) = report["events"]
    assert (event["kind"], event["first_step"], event["value"]) == ("nan_inf_loss", 300, "NaN")
    assert report["files"][0]["columns"]["loss"] == "loss"


def test_a_run_of_anomalies_is_one_event(tmp_path: Path, replay: Run) -> None:
    text = "".join(f"step {n} loss {'nan' if 100 <= n < 150 else 2.5}\n" for n in range(200))
    _, out, _ = replay(write(tmp_path / "train.log", text), "--json")
    (event,) = json.loads(out)["events"]
    assert (event["first_step"], event["last_step"], event["n"]) == (100, 149, 50)


def test_a_lossy_resume(tmp_path: Path, replay: Run) -> None:
    text = nanogpt(range(400)) + nanogpt(range(300, 600), offset=1.0, seed=1)
    status, out, _ = replay(write(tmp_path / "train.log", text), "--json")
    report = json.loads(out)
    assert status == 1
    assert report["restarts"] == {"n": 1, "lost_steps": 100, "continuity_ok": False}
    assert [event["kind"] for event in report["events"]][:2] == ["restart", "restart_discontinuity"]


def test_several_files_are_one_run(tmp_path: Path, replay: Run) -> None:
    first = write(tmp_path / "1.log.gz", gzip.compress(nanogpt(range(300)).encode()))
    second = write(tmp_path / "2.log", nanogpt(range(250, 500), seed=1))
    status, out, _ = replay(first, second, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["n_steps"] == 550
    assert report["restarts"]["n"] == 1
    (event,) = report["events"]
    assert (event["kind"], event["file"], event["line"]) == ("restart", 1, 1)


def test_a_compressed_file_that_is_cut_short(tmp_path: Path, replay: Run) -> None:
    data = gzip.compress(nanogpt(range(5000)).encode())
    status, out, _ = replay(write(tmp_path / "1.log.gz", data[: len(data) // 2]), "--json")
    report = json.loads(out)
    assert status == 0
    assert 1000 < report["n_steps"] < 5000
    assert "compressed" in report["files"][0]["damaged"][0][1]


def test_what_power_shell_redirects_is_utf_16(tmp_path: Path, replay: Run) -> None:
    data = nanogpt(range(500)).replace("\n", "\r\n").encode("utf-16")
    status, out, _ = replay(write(tmp_path / "train.log", data), "--json")
    assert status == 0
    assert json.loads(out)["n_steps"] == 500


def test_the_specification_s_preset(tmp_path: Path, replay: Run) -> None:
    log = write(tmp_path / "train.log", nanogpt(range(400)))
    assert json.loads(replay(log, "--json", "--spec")[1])["preset"] == "specification"


def test_columns_that_are_named(tmp_path: Path, replay: Run) -> None:
    text = "a,b,loss\n" + "".join(f"{n},{2.5 - n / 100},9.9\n" for n in range(20))
    log = write(tmp_path / "run.csv", text)
    report = json.loads(replay(log, "--map", "step=a", "--map", "loss=b", "--json")[1])
    assert report["files"][0]["columns"] == {"step": "a", "loss": "b"}
    assert report["loss"]["first"] == 2.5


def test_columns_of_text_that_are_named(tmp_path: Path, replay: Run) -> None:
    text = "".join(f"tick={n} objective={2.5 - n / 100}\n" for n in range(20))
    log = write(tmp_path / "run.log", text)
    report = json.loads(replay(log, "--map=step=tick", "--map=loss=objective", "--json")[1])
    assert (report["n_steps"], report["loss"]["first"], report["last_step"]) == (20, 2.5, 19)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"   \n\n", "is empty"),
        (b"Once upon a time there was a step, and another step.\n" * 50, "is no training log"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0" * 50, "it is binary"),
        (b"a,b\n1,2\n3,4\n", "is no training log"),
        (b'{"a": 1}\n{"a": 2}\n', "is no training log"),
    ],
)
def test_what_is_no_training_log(tmp_path: Path, replay: Run, content: bytes, said: str) -> None:
    status, out, err = replay(write(tmp_path / "file", content))
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_wrong_use(tmp_path: Path, replay: Run) -> None:
    log = write(tmp_path / "train.log", nanogpt(range(10)))
    table = write(tmp_path / "run.csv", "step,loss\n1,2.5\n2,2.4\n")
    for args in (
        [tmp_path / "none.log"],
        [tmp_path],
        [log, "--map", "loss"],
        [log, "--map", "colour=red"],
        [table, "--map", "loss=train/loss"],
        [log, "--plot", tmp_path / "plot.txt"],
        [log, "--plot", tmp_path / "none" / "plot.png"],
        [log, "--start", "2025-01-01T00:00:00Z"],
        [log, "--openmetrics", tmp_path / "m", "--start", "yesterday"],
        [log, "--format", "megatron"],
    ):
        status, out, err = replay(*args)
        assert (status, out) == (2, ""), args
        assert err.count("\n") == 1, err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is Linux's")
def test_a_full_disk_is_an_error_in_one_line(tmp_path: Path, replay: Run) -> None:
    log = write(tmp_path / "train.log", nanogpt(range(10)))
    plot = tmp_path / "plot.png"
    plot.symlink_to("/dev/full")
    status, _, err = replay(log, "--plot", plot)
    assert status == 2
    assert "cannot be written" in err


def test_damaged_lines_are_in_the_report(tmp_path: Path, replay: Run) -> None:
    text = nanogpt(range(100)) + "iter 100: loss \xff\n" + nanogpt(range(101, 200))
    status, out, _ = replay(write(tmp_path / "train.log", text.encode("latin-1")))
    assert status == 0
    assert "line 101" in out


def test_the_bar_is_shown_on_a_terminal_alone(tmp_path: Path) -> None:
    log = write(tmp_path / "train.log", nanogpt(range(3000)))
    command = [sys.executable, "-m", "health_exporter.cli", "replay", str(log), "--json"]
    quiet = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert quiet.stderr == b""
    leader, follower = pty.openpty()
    shown = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=follower, timeout=60, check=True,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    assert b"train.log" in os.read(leader, 1 << 16)
    os.close(leader)
    assert json.loads(shown.stdout) == json.loads(quiet.stdout)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Ten times the rows may cost some megabytes more: the monitor's own bounded windows."""
    peaks = []
    for count in (5_000, 50_000):
        log = tmp_path / f"{count}.csv"
        with log.open("w") as file:
            file.write("step,loss\n")
            file.writelines(f"{n},{2.5 + n % 7 / 100}\n" for n in range(count))
        script = (
            "import resource, sys; from health_exporter.cli import main;"
            f"main(['replay', {str(log)!r}, '--json']);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, timeout=100, check=True, text=True
        )
        peaks.append(int(done.stderr))
    assert peaks[1] - peaks[0] < 8 * 1024  # KiB


def test_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    from health_exporter.replay.detection import FORMATS

    with pytest.raises(SystemExit) as ended:
        main(["replay", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in FORMATS)


def receipt(tmp_path: Path, **more: Any) -> Path:
    return write(
        tmp_path / "report.json",
        json.dumps(
            {
                "schema_version": 1, "run": "r", "status": "finished", "n_steps": 100,
                "started_at": "2025-01-01T00:00:00Z", "written_at": "2025-01-01T01:00:00Z",
                "attempt_started_at": "2025-01-01T00:00:00Z",
                "anomalies_by_kind": {"loss_spike": 1},
                "anomalies": [{"step": 70, "kind": "loss_spike", "value": 5.0, "baseline": 2.5,
                               "z_score": 9.0, "detected_at_step": 70}],
                "restarts": {"steps": [50], "n": 1, "continuity_ok": True, "lost_steps": 3},
                **more,
            }
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"history": {"first_step": [60, 70], "loss_min": [2.5, 2.4], "loss_max": [2.6, 2.5]}},
        {"history": {"first_step": ["x"], "loss_min": [None], "grad_norm_min": 7}},
    ],
)
def test_a_receipt_is_drawn_as_far_as_it_has_data(tmp_path: Path, more: dict[str, Any]) -> None:
    plot = tmp_path / "plot.svg"
    assert main(["report", str(receipt(tmp_path, **more)), "--plot", str(plot)]) == 0
    assert "loss spike" in plot.read_text() or plot.stat().st_size > 5000
