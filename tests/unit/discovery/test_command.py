from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from health_exporter.cli import main
from health_exporter.runtime.registration import Registered
from health_exporter.runtime.settings import Settings

Json = list[dict[str, Any]]


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Json]:
    """What `health-exporter targets ...` prints."""

    def run(*argv: str) -> Json:
        assert main(["targets", *argv]) == 0
        content: Json = json.loads(capsys.readouterr().out)
        return content

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What it says when it refuses."""

    def run(*argv: str) -> str:
        try:
            code = main(["targets", *argv])
        except SystemExit as error:  # argparse's
            code = error.code if isinstance(error.code, int) else 1
        said = capsys.readouterr()
        assert (code, said.out) == (2, "")
        return said.err

    return run


def addresses(targets: Json) -> list[str]:
    return [address for target in targets for address in target["targets"]]


def register(folder: Path, *, run: str = "llama", rank: int = 0, **changes: Any) -> Path:
    registered = {
        "run": run,
        "rank": rank,
        "local_rank": rank,
        "world_size": 4,
        "attempt": 0,
        "host": "gpu1",
        "address": f"gpu1:{19400 + rank}",
        "pid": 1,
        "state": "starting",
        "time": 1000.0,
        **changes,
    }
    path = folder / run / "ranks" / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Registered(**registered).text())
    return path


def test_each_host_of_a_node_list_has_a_target_for_each_rank(listed: Callable[..., Json]) -> None:
    targets = listed("--slurm", "gpu[1-2]", "--ranks-per-host", "2", "--port", "9000")

    assert addresses(targets) == ["gpu1:9000", "gpu1:9001", "gpu2:9000", "gpu2:9001"]


def test_without_options_the_port_is_that_of_the_exporter(listed: Callable[..., Json]) -> None:
    assert addresses(listed("--slurm", "gpu1")) == [f"gpu1:{Settings(run='any').port}"]


def test_the_labels_tell_run_host_and_local_rank_under_names_that_rename_no_metric(
    listed: Callable[..., Json],
) -> None:
    [target] = listed("--slurm", "gpu1", "--run", 'a "b"')

    assert target["labels"] == {
        "__meta_training_health_run": 'a "b"',
        "__meta_training_health_local_rank": "0",
        "__meta_training_health_host": "gpu1",
    }


def test_without_a_value_the_node_list_is_that_of_the_job(
    listed: Callable[..., Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[08-09]")

    assert addresses(listed("--slurm")) == ["gpu08:19400", "gpu09:19400"]


def test_a_host_file_gives_as_many_targets_as_it_has_slots(
    listed: Callable[..., Json], tmp_path: Path
) -> None:
    file = tmp_path / "hosts"
    file.write_text("gpu1 slots=2\nfd00::1\n")

    assert addresses(listed("--hostfile", str(file))) == [
        "gpu1:19400",
        "gpu1:19401",
        "[fd00::1]:19400",
    ]
    assert len(listed("--hostfile", str(file), "--ranks-per-host", "4")) == 8


def test_registrations_carry_their_own_addresses(
    listed: Callable[..., Json], tmp_path: Path
) -> None:
    register(tmp_path, rank=2, address="gpu1:30000")
    register(tmp_path, run="other", address="gpu2:19400")

    targets = listed("--receipts", str(tmp_path))

    assert addresses(targets) == ["gpu1:30000", "gpu2:19400"]
    assert targets[0]["labels"] == {
        "__meta_training_health_run": "llama",
        "__meta_training_health_rank": "2",
        "__meta_training_health_local_rank": "2",
        "__meta_training_health_host": "gpu1",
    }
    assert addresses(listed("--receipts", str(tmp_path), "--run", "other")) == ["gpu2:19400"]


def test_no_registration_is_an_empty_list(listed: Callable[..., Json], tmp_path: Path) -> None:
    assert listed("--receipts", str(tmp_path)) == []


def test_the_same_input_gives_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (3, 0, 10, 2):
        register(tmp_path, rank=rank, world_size=16)
    texts = set()
    for _ in range(3):
        main(["targets", "--receipts", str(tmp_path)])
        texts.add(capsys.readouterr().out)

    [text] = texts
    assert addresses(json.loads(text)) == ["gpu1:19400", "gpu1:19402", "gpu1:19403", "gpu1:19410"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--slurm", "gpu[4-1]"], ["--slurm", "gpu[4-1]"]),
        (["--slurm", "gpu[1-2"], ["--slurm", "gpu[1-2"]),
        (["--slurm"], ["--slurm", "SLURM_JOB_NODELIST"]),
        (["--hostfile", "missing"], ["--hostfile", "missing"]),
        (["--receipts", "missing"], ["--receipts", "missing"]),
        (["--slurm", "gpu1", "--port", "0"], ["--port", "0"]),
        (["--slurm", "gpu1", "--port", "x"], ["--port", "'x'"]),
        (["--slurm", "gpu1", "--port", "65535", "--ranks-per-host", "2"], ["65535", "gpu1"]),
        (["--slurm", "gpu1", "--ranks-per-host", "0"], ["--ranks-per-host", "0"]),
        (["--slurm", "gpu1", "--run", " "], ["--run", "' '"]),
        (["--slurm", "gpu1", "--watch", "5"], ["--watch", "--out"]),
        (["--slurm", "gpu1", "--out", "out", "--watch", "nan"], ["--watch", "nan"]),
        (["--slurm", "gpu1", "--out", "missing/out"], ["--out", "missing/out"]),
        (["--slurm", "gpu1", "--out", "."], ["--out", "'.'"]),
        (["--slurm", "gpu1", "--receipts", "x"], ["--receipts", "--slurm"]),
        (["--receipts", ".", "--port", "9000"], ["--port 9000", "--receipts"]),
        (["--receipts", ".", "--run", "never"], ["--receipts", "'never'"]),
        ([], ["--hostfile", "--slurm", "--receipts"]),
    ],
)
def test_wrong_use_is_refused_by_argument_and_value(
    argv: list[str],
    said: list[str],
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    message = refused(*argv)

    assert all(part in message for part in said), message
    assert list(tmp_path.iterdir()) == []


def test_an_empty_host_file_leaves_the_list_that_was_there(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("# to be filled in\n")
    out = tmp_path / "targets.json"
    out.write_text("[]\n")

    assert "no host" in refused("--hostfile", str(tmp_path / "hosts"), "--out", str(out))
    assert out.read_text() == "[]\n"


def test_the_file_is_replaced_whole_and_can_be_read_by_prometheus(tmp_path: Path) -> None:
    out = tmp_path / "targets.json"
    out.write_text("old")
    before = out.stat().st_ino
    with out.open() as reader:  # as of a Prometheus that has just opened it
        assert main(["targets", "--slurm", "gpu[1-3]", "--out", str(out)]) == 0

        assert reader.read() == "old"
    assert out.stat().st_ino != before
    assert addresses(json.loads(out.read_text())) == ["gpu1:19400", "gpu2:19400", "gpu3:19400"]
    umask = os.umask(0)
    os.umask(umask)
    assert out.stat().st_mode & 0o777 == 0o666 & ~umask
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    out = tmp_path / "targets.json"
    out.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    assert "No space left" in refused("--slurm", "gpu1", "--out", str(out))
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@contextlib.contextmanager
def watching(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """`health-exporter targets ... --watch` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "health_exporter.cli", "targets", *argv, "--watch", "0.02"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_watch_follows_its_input_survives_a_bad_one_and_ends_well_when_interrupted(
    tmp_path: Path,
) -> None:
    hosts, out = tmp_path / "hosts", tmp_path / "targets.json"
    hosts.write_text("gpu1\n")

    def shows(*expected: str) -> bool:
        return out.exists() and addresses(json.loads(out.read_text())) == list(expected)

    with watching("--hostfile", str(hosts), "--out", str(out)) as process:
        until(lambda: shows("gpu1:19400"))
        written = out.stat()
        hosts.write_text("gpu1 # the same\n")
        hosts.write_text("gpu1\ngpu2\n")
        until(lambda: shows("gpu1:19400", "gpu2:19400"))
        assert out.stat().st_ino != written.st_ino
        hosts.unlink()
        assert process.stderr is not None
        complaint = process.stderr.readline()  # comes once
        assert "stays as it is" in complaint
        assert shows("gpu1:19400", "gpu2:19400")
        hosts.write_text("gpu3\n")
        until(lambda: shows("gpu3:19400"))
        process.send_signal(signal.SIGINT)

        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()


def test_a_watch_does_not_touch_a_file_that_need_not_change(tmp_path: Path) -> None:
    out = tmp_path / "targets.json"
    path = register(tmp_path / "receipts")
    argv = ["targets", "--receipts", str(tmp_path / "receipts"), "--out", str(out)]
    assert main(argv) == 0
    before = out.stat()
    path.write_text(path.read_text())

    assert main(argv) == 0

    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
