"""A running endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from health_exporter.export.endpoint import Endpoint
from tests.unit.export.running import Gate, Serve, ok


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts an endpoint with `/ok` and the given routes on a loopback port of its own."""
    with contextlib.ExitStack() as opened:

        def start(**arguments: Any) -> Endpoint:
            routes = {"/ok": ok, **arguments.pop("routes", {})}
            arguments.setdefault("address", "127.0.0.1")
            return opened.enter_context(Endpoint(routes, **arguments))

        yield start


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()
