"""Benchmarks run twice over: measured by `tests/run bench`, and once each by `tests/run`."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick(request: pytest.FixtureRequest) -> bool:
    """True where a benchmark only has to show that it works (`--benchmark-disable`).

    A benchmark that times things itself then does a few rounds and asserts no ratio.
    """
    return bool(request.config.getoption("benchmark_disable"))
