"""The servers that stack tests talk to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack.prometheus_server import PrometheusServer
from tests.stack.server_version import use
from tests.stack.trainer_script import Script, StartScript

StartPrometheus = Callable[..., PrometheusServer]


@pytest.fixture
def servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers that a test finds on PATH; see `server_version.on_both`."""
    use(request.param, monkeypatch)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[StartPrometheus]:
    """Starts a Prometheus with `PrometheusServer`'s arguments; it ends with the test."""
    with contextlib.ExitStack() as servers:
        started = 0

        def start(**arguments: object) -> PrometheusServer:
            nonlocal started
            started += 1
            folder = tmp_path / f"prometheus-{started}"
            return servers.enter_context(PrometheusServer(folder, **arguments))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartScript]:
    """Starts a trainer's script in a process of its own; it ends with the test."""
    started: list[Script] = []

    def begin(body: str, **arguments: object) -> Script:
        arguments.setdefault("folder", tmp_path / f"receipts-{len(started)}")
        started.append(Script(body, **arguments))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for script in started:
        script.dispose()
