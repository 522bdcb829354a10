"""What every test relies on: no setting or rank of the machine it runs on reaches it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

# Settings of the package, what the launchers tell a rank, and what the client libraries read.
_PREFIXES = (
    "HEALTH_EXPORTER_",
    "OMPI_",
    "OTEL_",
    "PMI_",
    "PMIX_",
    "SLURM_",
    "TORCHELASTIC_",
)
_NAMES = {
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PROMETHEUS_MULTIPROC_DIR",
    "RANK",
    "WORLD_SIZE",
    # The servers under test are on the loopback interface; a proxy would not find them.
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
}


def _clean(patch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_PREFIXES) or name.upper() in _NAMES:
            patch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _clean_session() -> Iterator[None]:
    """Fixtures that live longer than one test see a clean environment too."""
    with pytest.MonkeyPatch.context() as patch:
        _clean(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _mind_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test leaves in the environment does not reach the next."""
    _clean(monkeypatch)
