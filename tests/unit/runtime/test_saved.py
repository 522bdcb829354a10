"""What the next process of a run makes of what the one before it left on disk."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from health_exporter import StateError
from health_exporter.runtime.receipt import ReceiptWriter
from tests.unit.export.raw_http import eventually
from tests.unit.runtime.recorded import Clock, begin, kill, loads, observe, take_over


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a run that was killed after ten steps and a NaN."""
    clock = Clock()
    run = begin(tmp_path, clock)
    observe(run, *range(5, 15))
    observe(run, 15, loss=math.nan)
    clock.now += 60.0
    assert run.receipts.write(10.0)
    kill(run)
    return tmp_path


def state_path(folder: Path) -> Path:
    return folder / "r" / "state.json"


def change(folder: Path, name: str, edit: Any) -> None:
    path = folder / "r" / name
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def set_aside(folder: Path) -> list[Path]:
    return sorted((folder / "r").glob("previous-*"))


def test_a_killed_run_goes_on_with_its_counters_and_baseline(killed: Path):
    run = begin(killed, Clock())

    view = run.view().last
    assert (view.step, view.n_steps, view.anomalies["nan_inf_loss"]) == (15, 11, 1)
    assert sum(view.duration_counts) == 11
    assert view.loss is None  # of an observation that this process has not seen
    observe(run, 11)
    view = run.view().last
    assert (view.step, view.n_steps, view.n_restarts, view.lost_steps) == (11, 12, 1, 5)
    assert view.loss_judged is not None
    assert view.loss_judged[0] == 2.0
    assert not set_aside(killed)


def test_a_jump_after_the_resume_is_a_discontinuity(killed: Path):
    run = begin(killed, Clock())
    observe(run, 16, loss=50.0)

    assert run.view().last.anomalies["restart_discontinuity"] == 1
    assert not run.view().last.continuity_ok


DAMAGED = {
    "empty": "",
    "truncated": '{"schema_version": 1, "run": "r", "judge": {"mon',
    "no JSON": "hello",
    "no object": "[1, 2]",
    "another object": '{"a": 1}',
    "binary": "\ufffd\x00\x01",
    "deeply nested": "[" * 100_000,
    "no judge": '{"schema_version": 1, "run": "r", "state": "running"}',
    "huge numbers": '{"schema_version": 1, "run": "r", "judge": {"first_step": 1e999}}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_state_is_put_aside(killed: Path, name: str, caplog: pytest.LogCaptureFixture):
    state_path(killed).write_text(DAMAGED[name])

    run = begin(killed, Clock())

    assert run.view().last.n_steps == 0
    (aside,) = set_aside(killed)
    assert (aside / "state.json").read_text() == DAMAGED[name]
    assert (aside / "report.json").exists()
    assert (aside / "events.jsonl").exists()
    assert "starts a fresh record" in caplog.text
    first = loads((killed / "r" / "events.jsonl").read_text().splitlines()[0])
    assert first["put_aside"]["folder"] == aside.name
    observe(run, 1)
    assert run.view().last.n_restarts == 0


def test_a_state_in_another_encoding_is_put_aside(killed: Path):
    state_path(killed).write_bytes(b"\xff\xfe\x00")

    assert begin(killed, Clock()).view().last.n_steps == 0
    assert len(set_aside(killed)) == 1


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("schema_version", 2, "schema_version 2"),
        ("run", "other", "of run 'other'"),
    ],
)
def test_a_state_of_another_run_or_version_is_put_aside(
    killed: Path, key: str, value: object, said: str, caplog: pytest.LogCaptureFixture
):
    change(killed, "state.json", lambda state: state.update({key: value}))

    assert begin(killed, Clock()).view().last.n_steps == 0
    assert len(set_aside(killed)) == 1
    assert said in caplog.text


def leaves(value: Any, path: tuple = ()) -> list[tuple]:
    """Paths of everything in it."""
    found = [path] if path else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:2])
    for key, item in items:
        found += leaves(item, (*path, key))
    return found


def replaced(value: Any, path: tuple, new: Any) -> Any:
    value = json.loads(json.dumps(value))
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


WRONG: tuple[Any, ...] = (None, "x", -5, 1e999, [], {}, [[]], True, 10**400, {"a": 1})


def test_wrong_values_anywhere_in_the_state_never_stop_the_run(
    killed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It goes on from it or puts it aside; either way the next steps are judged."""
    monkeypatch.setattr(ReceiptWriter, "event", lambda self, event, **fields: None)
    caplog.set_level(logging.ERROR)
    good = json.loads(state_path(killed).read_text())
    for path in leaves(good):
        for new in WRONG:
            state_path(killed).write_text(json.dumps(replaced(good, path, new)))
            run = take_over(killed)
            for aside in set_aside(killed):
                shutil.rmtree(aside)
            observe(run, 100, 101)
            for made in (run.report(), run._saved_state(), run._saved_progress()):
                try:
                    json.dumps(made, allow_nan=False)
                except ValueError as error:
                    raise AssertionError(f"{path} = {new!r}: {error}") from error


@pytest.mark.parametrize("name", ["progress.json", "events.jsonl"])
def test_damage_beside_the_state_costs_only_what_it_added(killed: Path, name: str):
    good = (killed / "r" / "progress.json").read_text()
    texts = ["", "[]", "{", "null", '{"time": 1, "event": "anomaly"}\n{"time": "x"}\n', "[" * 10**5]
    if name == "progress.json":
        content = json.loads(good)
        content["n_steps"] += 1
        texts += [
            json.dumps(replaced(content, path, new)) for path in leaves(content) for new in WRONG
        ]
    for text in texts:
        (killed / "r" / name).write_text(text)
        run = take_over(killed)
        assert run.view().last.n_steps >= 11, text
        assert not set_aside(killed)


def test_what_happened_after_the_last_state_is_not_lost(tmp_path: Path):
    """Killed between two writes of the state: the bare counters and the events are newer."""
    clock = Clock()
    first = begin(tmp_path, clock)
    observe(first, 1, 2, 3)
    assert first.receipts.write(10.0)
    old = state_path(tmp_path).read_text()
    observe(first, 4)
    observe(first, 5, loss=math.inf)
    assert first.receipts.write(10.0)
    kill(first)
    state_path(tmp_path).write_text(old)

    second = begin(tmp_path, clock)

    view = second.view().last
    assert (view.n_steps, view.step) == (5, 5)
    assert view.anomalies["nan_inf_loss"] == 1
    assert view.last_anomalies["nan_inf_loss"][1] == 5
    assert sum(view.duration_counts) == 5


@pytest.mark.parametrize("moments", range(4))
def test_no_counter_goes_back_with_respect_to_what_a_scrape_saw(tmp_path: Path, moments: int):
    """After a scrape and a kill, the next process continues at what was scraped or above."""
    clock = Clock()
    run = begin(tmp_path, clock)
    assert run.receipts.write(10.0)
    observe(run, *range(10 + moments))
    observe(run, 20, loss=math.nan)
    seen = run.view().last
    run.receipts.scraped()
    wait_for_progress(tmp_path, seen.n_steps)
    kill(run)

    after = begin(tmp_path, clock).view().last

    assert after.n_steps >= seen.n_steps
    assert after.lost_steps >= seen.lost_steps
    assert sum(after.duration_counts) >= sum(seen.duration_counts)
    assert after.duration_sum_s >= seen.duration_sum_s
    assert all(after.anomalies[kind] >= n for kind, n in seen.anomalies.items())


def wait_for_progress(folder: Path, n_steps: int) -> None:
    path = folder / "r" / "progress.json"
    assert eventually(lambda: json.loads(path.read_text())["n_steps"] >= n_steps)


def test_a_finished_run_under_the_same_name_is_a_new_run(
    killed: Path, caplog: pytest.LogCaptureFixture
):
    finished = begin(killed, Clock())
    observe(finished, 16)
    finished.finish("finished", None)
    kill(finished)

    run = begin(killed, Clock())
    observe(run, 17)

    assert run.view().last.n_steps == 1
    assert run.view().last.n_restarts == 0
    (aside,) = set_aside(killed)
    assert loads((aside / "report.json").read_text())["status"] == "finished"
    assert "had finished" in caplog.text


@pytest.mark.parametrize("status", ["terminated", "interrupted", "failed"])
def test_a_run_that_ended_otherwise_goes_on(killed: Path, status: str):
    ended = begin(killed, Clock())
    observe(ended, 16)
    ended.finish(status, None)
    kill(ended)

    run = begin(killed, Clock())
    observe(run, 17)

    assert run.view().last.n_steps == 13
    assert run.view().last.n_restarts == 2
    events = [loads(line) for line in (killed / "r" / "events.jsonl").read_text().splitlines()]
    assert [e["previous_state"] for e in events if e["event"] == "start"][-1] == status


@pytest.mark.parametrize("step", [5, 3, 0])
def test_a_run_that_begins_again_at_its_first_step_is_a_new_run(
    killed: Path, step: int, caplog: pytest.LogCaptureFixture
):
    run = begin(killed, Clock())
    observe(run, step, step + 1)

    view = run.view().last
    assert (view.n_steps, view.n_restarts, view.lost_steps) == (2, 0, 0)
    assert view.anomalies["nan_inf_loss"] == 0
    assert len(set_aside(killed)) == 1
    assert "begins again" in caplog.text
    events = [loads(line) for line in (killed / "r" / "events.jsonl").read_text().splitlines()]
    assert "new_run" in [event["event"] for event in events]
    assert "restart" not in [event["event"] for event in events]


def test_a_new_run_whose_first_observation_is_refused_has_no_restart(killed: Path):
    run = begin(killed, Clock())
    with pytest.raises(TypeError):
        run.observe(
            5,
            "no loss",  # type: ignore[arg-type]
            grad_norm=None,
            step_time_s=None,
            batch_size=None,
            restart=False,
        )
    observe(run, 6)

    assert run.view().last.n_restarts == 0


def test_a_marked_restart_at_the_first_step_goes_on(killed: Path):
    run = begin(killed, Clock())
    observe(run, 5, restart=True)

    assert run.view().last.n_steps == 12
    assert run.view().last.lost_steps == 11


def test_a_checkpoint_wins_over_the_file(killed: Path):
    early = begin(killed / "other", Clock())
    observe(early, *range(5, 9), loss=7.0)
    observe(early, 9, loss=7.0)
    checkpoint = loads(json.dumps(early.state_dict()))

    run = begin(killed, Clock())
    run.load_state_dict(checkpoint)
    observe(run, 10, loss=7.0)

    view = run.view().last
    assert view.loss_judged is not None
    assert view.loss_judged[0] == 7.0  # the checkpoint's baseline
    assert view.n_steps == 12  # the file's count
    assert view.lost_steps == 6
    assert view.anomalies["restart_discontinuity"] == 0


def test_a_damaged_checkpoint_changes_nothing(killed: Path):
    run = begin(killed, Clock())
    good = run.state_dict()
    wrongs: tuple[Any, ...] = ([], {"version": 99}, {"version": 1}, 5, {**good, "monitor": {}})
    for wrong in wrongs:
        with pytest.raises(StateError):
            run.load_state_dict(wrong)
    assert run.state_dict() == good
