"""What rank 0 waits for before it says its last word."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from health_exporter import HealthExporter
from health_exporter.runtime.watch import Watch


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Rank 0 of three, with a store that answers."""
    monkeypatch.setattr(Watch, "connected", True)
    exporter = HealthExporter(run="r", port=None, receipt_dir=tmp_path, linger_s=0)
    watch = exporter._this_rank.watch
    exporter.close()
    watch.standing = standing(alive=3)
    return watch


def standing(*, alive: int, dead: int = 0) -> Any:
    return SimpleNamespace(counts={"alive": alive, "stuck": 0, "dead": dead})


def looked_for_s(watch: Watch, state: str) -> float:
    began = time.monotonic()
    watch.look_for_cause(state)
    return time.monotonic() - began


@pytest.mark.parametrize("state", ["terminated", "failed"])
def test_an_early_end_waits_for_who_died_before(watch: Watch, state: str):
    looking = threading.Thread(target=watch.look_for_cause, args=(state,))
    looking.start()
    looking.join(0.3)
    assert looking.is_alive()
    watch.standing = standing(alive=2, dead=1)
    looking.join(0.5)
    assert not looking.is_alive()


def test_it_waits_for_a_second_at_most(watch: Watch):
    assert 1.0 <= looked_for_s(watch, "terminated") < 5.0


@pytest.mark.parametrize("state", ["finished", "interrupted"])
def test_no_other_end_waits(watch: Watch, state: str):
    assert looked_for_s(watch, state) < 0.5


def test_it_does_not_wait_where_the_others_have_left(watch: Watch):
    watch.standing = standing(alive=1)

    assert looked_for_s(watch, "terminated") < 0.5
