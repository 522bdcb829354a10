"""This package's own connection to the job's c10d store.

The trainer's own client is never used: a client is locked for as long as one of its calls waits,
and a trainer's may wait for many minutes.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import logging
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
"""Long enough for one lost packet; nobody waits for it."""

_CALL_TIMEOUT_S = 10.0
"""16,384 beats are read in a quarter of a second; a busy store may need more."""


class Store(Protocol):
    """What is needed of a c10d store. Any call may raise RuntimeError or OSError."""

    def set(self, key: str, value: bytes) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def append(self, key: str, value: bytes) -> Any: ...
    def multi_get(self, keys: list[str]) -> Sequence[bytes]: ...


class StoreGoneError(OSError):
    """The store's side has closed the connection, or is not there."""


class JobStore:
    """Finds the job's store and connects to it.

    Args:
        prefix: Name space of the keys.
        environ: Environment, for `MASTER_ADDR` and `MASTER_PORT`.
    """

    def __init__(self, prefix: str, environ: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._environ = environ

    def expected(self) -> bool:
        """Whether there may be a store at all: a rendezvous was announced, or torch is in use."""
        announced = self._environ.get("MASTER_ADDR") and self._environ.get("MASTER_PORT")
        return bool(announced) or "torch" in sys.modules

    def connect(self, *, may_import: bool) -> GuardedStore | None:
        """A new connection; None where there is no store yet.

        The first import of torch takes seconds, with the interpreter's lock held for much of them,
        so it is left to the trainer unless `may_import`.

        Raises:
            RuntimeError, OSError: Something listens there, but no store answered.
        """
        distributed = _distributed(may_import=may_import)
        address = self._address(distributed) if distributed is not None else None
        # torch's client writes a stack trace to stderr when nobody listens yet, and that is the
        # ordinary case until the trainer has opened its store: so ask first.
        if distributed is None or address is None or not _listens(*address):
            return None
        before = _sockets()
        client = distributed.TCPStore(
            *address,
            None,
            False,
            timeout=datetime.timedelta(seconds=_CALL_TIMEOUT_S),
            wait_for_workers=False,
        )
        descriptor = _new_connection(before, address[1])
        return GuardedStore(distributed.PrefixStore(self._prefix, client), descriptor)

    def _address(self, distributed: Any) -> tuple[str, int] | None:
        """The store of the default process group, else what the environment announces."""
        if distributed.is_initialized():
            store = distributed.distributed_c10d._get_default_store()
            while isinstance(store, distributed.PrefixStore):
                store = store.underlying_store
            if isinstance(store, distributed.TCPStore):
                return store.host, store.port
        host, port = self._environ.get("MASTER_ADDR", ""), self._environ.get("MASTER_PORT", "")
        return (host, int(port)) if host and port.isdecimal() else None


class GuardedStore:
    """A store that is not asked when its connection is known to be broken.

    torch's client would write a stack trace to the trainer's stderr: at the ordinary end of a job
    too, when the rank that hosts the store leaves first.
    """

    def __init__(self, store: Store, descriptor: int | None) -> None:
        self._store = store
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        if descriptor is not None:
            poll = select.poll()
            poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            self._poll = poll.poll

    def _check(self) -> Store:
        if self._poll is not None and self._poll(0):
            raise StoreGoneError("the job's store has closed the connection")
        return self._store

    def set(self, key: str, value: bytes) -> None:
        self._check().set(key, value)

    def get(self, key: str) -> bytes:
        return self._check().get(key)

    def append(self, key: str, value: bytes) -> None:
        self._check().append(key, value)

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        return self._check().multi_get(keys)


def _distributed(*, may_import: bool) -> Any:
    """`torch.distributed`; None where it is missing, or not imported yet and not to be."""
    torch = sys.modules.get("torch")
    if torch is not None:
        if getattr(torch.__spec__, "_initializing", False):
            return None  # the trainer is importing it right now
    elif not may_import or importlib.util.find_spec("torch") is None:
        return None
    import torch.distributed as distributed

    return distributed if distributed.is_available() else None


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as sock:
            # While nobody listens on a port of the ephemeral range, a connection to it from the
            # same machine can get that very port for its own end, and connect to itself.
            return bool(sock.getsockname() != sock.getpeername())
    except (OSError, OverflowError):
        return False


def _sockets() -> set[tuple[int, str]]:
    """Descriptors of this process's sockets, each with the kernel's own name of the socket.

    The number alone would not do: another thread may close one and the next gets its number.
    """
    found: set[tuple[int, str]] = set()
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # not Linux
        return found
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found


def _new_connection(before: set[tuple[int, str]], port: int) -> int | None:
    """The one new descriptor that is connected to `port` of somewhere; None if not just one is.

    torch does not tell its client's descriptor. It is only ever polled.
    """
    if socket.getdefaulttimeout() is not None or not hasattr(select, "POLLRDHUP"):
        return None  # a socket object made under a default timeout would turn it non-blocking
    found = []
    for descriptor, _ in _sockets() - before:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
            peer = sock.getpeername()  # a string, where it is another thread's UNIX socket
            if isinstance(peer, tuple) and peer[1] == port:
                found.append(descriptor)
    return found[0] if len(found) == 1 else None
