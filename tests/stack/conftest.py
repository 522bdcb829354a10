"""The servers that stack tests talk to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from health_exporter.demo.stack import Stack
from tests.stack.paged_run import PagedRun
from tests.stack.prometheus_server import PrometheusServer
from tests.stack.server_version import ON_PATH, use
from tests.stack.trainer_script import Script, StartScript

StartPrometheus = Callable[..., PrometheusServer]
StartRun = Callable[..., PagedRun]

# Scrapes every two seconds.
FASTER = 7.5

# Limits that are of hours or of a run's own pace, shortened for the tests.
CHANGES = {
    "missing_after": "25s",
    "terminated_warning": "8s",
    "terminated_page": "16s",
    "slow_timeout_seconds": "19",
    "receipt_age": "20s",
    "loss_not_finite_hold": "10s",
    "lossy_resume_hold": "10s",
    "grad_norm_spikes": "5",  # of what comes often, the monitor soon finds nothing in it
}


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


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stack]:
    """The shipped configuration at a quick pace, for all tests of a file: runs tell alerts apart.

    The parameter, if any, is as `server_version.versions` gives it.
    """
    with pytest.MonkeyPatch.context() as patch:
        use(getattr(request, "param", ON_PATH), patch)
        with Stack(tmp_path_factory.mktemp("stack"), faster=FASTER, changes=CHANGES) as stack:
            yield stack
            assert stack.pager.refused == []


@pytest.fixture
def new_run(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartRun]:
    """Makes runs that are named after the test; they end with it."""
    runs: list[PagedRun] = []

    def start(name: str = "", **settings: object) -> PagedRun:
        run = (request.node.name.removeprefix("test_") + name)[:70]

        def set_targets(addresses: list[str]) -> None:
            stack.set_targets(addresses, name=run)

        runs.append(PagedRun(run, tmp_path, set_targets, **settings))  # type: ignore[arg-type]
        return runs[-1]

    yield start
    for run in runs:
        stack.set_targets([], name=run.run)
        run.dispose()
