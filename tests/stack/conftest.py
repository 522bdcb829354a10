"""The servers that stack tests talk to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack.prometheus_server import PrometheusServer

StartPrometheus = Callable[..., PrometheusServer]


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
