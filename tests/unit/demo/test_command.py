from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest

from health_exporter.demo.command import add_arguments, run
from health_exporter.demo.fault import FAULTS
from health_exporter.demo.settings import DemoSettings


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="health-exporter demo")
    add_arguments(made)
    return made


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--steps 0", "--steps must be >= 1, got 0"),
        ("--ranks 0", "--ranks must be >= 1, got 0"),
        ("--ranks 65", "--ranks must be <= 64, got 65"),
        ("--port -1", "got -1"),
        ("--port 65535", "--port must leave a port below 65536 for each rank, got 65535"),
        ("--seed -1", "--seed must be >= 0, got -1"),
        ("--run=", "--run must not be empty"),
        ("--out=", "--out must not be empty"),
        ("--linger -1", "--linger must be >= 0, got -1"),
        ("--linger nan", "--linger must be >= 0, got nan"),
        ("--fault-hold -1", "--fault-hold must be >= 0, got -1"),
        ("--at-step 5", "--at-step 5 needs a --fault"),
        ("--fault nan --at-step 0", "--at-step 0 leaves no room for --fault nan: use 1 to 398"),
        ("--fault nan --at-step 399", "--at-step 399 leaves no room"),
        ("--fault loss-spike --at-step 29", "use 30 to 398"),
        ("--fault resume --at-step 49", "use 50 to 398"),
        ("--fault lossy-resume --steps 40", "--steps 40 leaves no room for --fault lossy-resume"),
        ("--fault kill-rank --ranks 1", "--fault kill-rank needs --ranks >= 2, got 1"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(
    line: str, named: str, capsys: pytest.CaptureFixture[str]
):
    status = run(parser().parse_args(line.split()))

    assert status == 2
    assert named in capsys.readouterr().err


def test_all_wrong_arguments_are_named_at_once(capsys: pytest.CaptureFixture[str]):
    run(parser().parse_args(["--steps", "0", "--seed", "-1"]))

    errors = capsys.readouterr().err
    assert "--steps" in errors
    assert "--seed" in errors


@pytest.mark.parametrize("line", ["--fault boom", "--steps many", "--unheard-of"])
def test_what_does_not_parse_is_wrong_use(line: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_info:
        parser().parse_args(line.split())

    assert exit_info.value.code == 2


def test_the_number_of_steps_that_is_proposed_is_enough(capsys: pytest.CaptureFixture[str]):
    run(parser().parse_args(["--fault", "lossy-resume", "--steps", "10"]))
    proposed = int(capsys.readouterr().err.split("use --steps ")[1].split()[0])

    settings = DemoSettings(fault="lossy-resume", steps=proposed)

    assert 30 <= settings.fault_step <= proposed - 2


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_room_in_a_default_run(fault: str):
    settings = DemoSettings(fault=fault)

    assert 0 < settings.fault_step < settings.steps


@pytest.mark.parametrize("fault", ["resume", "lossy-resume"])
def test_a_default_resume_does_some_steps_again(fault: str):
    settings = DemoSettings(fault=fault)

    assert (settings.fault_step + 1) % settings.checkpoint_every > 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_the_ranks_share_one_batch(ranks: int):
    settings = DemoSettings(ranks=ranks)

    assert settings.batch_size == settings.batch_per_rank * ranks
    assert 56 < settings.batch_size <= 64


def test_settings_survive_the_file_that_the_ranks_read(tmp_path: Path):
    settings = DemoSettings(steps=77, fault="nan", at_step=5, linger_s=1.5, out=str(tmp_path))

    settings.write(tmp_path / "demo.json")

    assert DemoSettings.read(tmp_path / "demo.json") == settings


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    status = run(parser().parse_args([]))

    assert status == 2
    assert 'pip install "health-exporter[demo]"' in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()

    status = run(parser().parse_args(["--out", str(tmp_path / "file")]))

    assert status == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_the_help_names_every_fault_and_the_exit_status():
    text = parser().format_help()

    assert all(fault in text for fault in FAULTS)
    assert "exit status" in text
