"""What a forked child must let go of.

A data loader's worker inherits every socket of its trainer, and often outlives it: after kill -9 of
the trainer it would hold the port, so that the next attempt could not bind it and scrapes would
time out.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol


class Owner(Protocol):
    """Holds something that is its process's alone."""

    def abandon_in_child(self) -> None:
        """Let go without any effect on the parent, and without taking a lock that it may hold."""


_owners: set[Owner] = set()
_lock = threading.Lock()
_hooked = False


def watch(owner: Owner) -> None:
    """Have `owner` abandoned in every child forked from now on, until `unwatch`."""
    global _hooked
    _owners.add(owner)
    with _lock:
        # At first use and not on import: a hook cannot be taken back. Where there is no fork,
        # there is no hook either.
        if not _hooked and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_abandon_all)
            _hooked = True


def unwatch(owner: Owner) -> None:
    """Forget `owner`, which has let go by itself."""
    _owners.discard(owner)


def _abandon_all() -> None:
    global _lock
    _lock = threading.Lock()
    for owner in list(_owners):
        owner.abandon_in_child()
