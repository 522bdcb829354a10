"""Proof that another rank's process is gone, sooner than its silence would show it.

An innocent rank must never be taken for a dead one, so only two observations count, and each only
against what was seen while the rank lived:

- *Its process is no more.* A rank says which process of which running kernel and PID namespace it
  is, with the process's start time. Where that is this machine's, the process was once found under
  that number, and now the number is free, belongs to a process with another start time, or is a
  zombie's, it has ended. A process that is stopped, swapped out, or holds the interpreter's lock
  keeps its number.
- *Its endpoint refuses a connection*, having accepted one before, and its beat is overdue. The
  kernel of the other machine itself refuses when no process listens on the port any more; a
  process that hangs still has its socket, and the kernel accepts for it. The acceptance before
  shows that the address leads there, and not into a firewall that refuses. Anything else, above
  all silence, proves nothing: networks lose packets. A child process that inherited the socket
  accepts too: that also proves nothing.

A process that ended well said goodbye before; whoever asks here reads its last beat afterwards.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from health_exporter.core.beat import Beat

_PROC = Path("/proc")
_CONNECT_TIMEOUT_S = 0.25
"""Within a cluster a connection takes a millisecond; whoever needs longer proves nothing."""

_BUDGET_S = 0.5
_MOST_CONNECTS = 32
"""Of one round: a tenth of the usual 5 s between beats, whatever the number of ranks."""

ENDED = "ZX"
"""State letters of a process that runs no more: a zombie, and one about to vanish."""

_START_TIME = 19  # field 22 of /proc/PID/stat, counted from the state, which is field 3


def process_identity(pid: int | None = None) -> str:
    """Kernel, PID namespace, number and start time of a process (None: this one).

    It is "" where the system does not tell.
    """
    pid = os.getpid() if pid is None else pid
    try:
        kernel = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    status = process_status(pid)
    return f"{kernel}/{namespace}/{pid}/{status[1]}" if status else ""


def process_status(pid: int) -> tuple[str, str] | None:
    """State letter and start time of a process; None if there is none of that number.

    The start time is in clock ticks since the system has started.

    Raises:
        OSError: The system does not say.
        ValueError, IndexError: Or not in the form that Linux has it in.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold anything, brackets included.
    fields = stat[stat.rindex(b")") + 1 :].split()
    return fields[0].decode(), fields[_START_TIME].decode()


class ProcessProbe:
    """Looks after ranks' processes.

    `meet` and `refused` may block, and may run on another thread than the rest.
    """

    def __init__(self) -> None:
        self._space = process_identity().rsplit("/", 2)[0]
        self._seen: dict[int, Beat] = {}  # by rank, processes found on this machine
        self._tried: dict[int, str] = {}  # by rank, the address that was connected to
        self._accepted: dict[int, str] = {}  # the same, where the connection was accepted

    def learn(self, beats: Iterable[Beat]) -> None:
        """Note which of the ranks' processes can be seen on this machine."""
        for beat in beats:
            if beat.said_goodbye:
                self._seen.pop(beat.rank, None)
                continue
            if not self._space or not beat.process.startswith(f"{self._space}/"):
                continue
            known = self._seen.get(beat.rank)
            if known is None or known.process != beat.process:
                self._seen.pop(beat.rank, None)
                if self._exists(beat):
                    self._seen[beat.rank] = beat

    def ended(self) -> list[Beat]:
        """Of the processes seen on this machine, one beat of each that exists no more."""
        return [beat for beat in tuple(self._seen.values()) if not self._exists(beat)]

    def forget(self, beats: Iterable[Beat]) -> None:
        """Look after these processes no more."""
        for beat in beats:
            self._seen.pop(beat.rank, None)

    def meet(self, beats: Iterable[Beat]) -> None:
        """Connect once to every endpoint of another machine, a few at a time."""
        deadline = time.monotonic() + _BUDGET_S
        tried = 0
        for beat in beats:
            if not beat.address or beat.said_goodbye or beat.rank in self._seen:
                continue
            if self._tried.get(beat.rank) == beat.address:
                continue
            if tried == _MOST_CONNECTS or time.monotonic() > deadline:
                return
            tried += 1
            self._tried[beat.rank] = beat.address
            if _connect(beat.address) == "accepted":
                self._accepted[beat.rank] = beat.address

    def refused(self, overdue: Sequence[Beat]) -> list[Beat]:
        """Of ranks whose beat is overdue, those whose endpoint is closed."""
        deadline = time.monotonic() + _BUDGET_S
        closed = []
        known = [b for b in overdue if b.address and self._accepted.get(b.rank) == b.address]
        for beat in known[:_MOST_CONNECTS]:
            if time.monotonic() > deadline:
                break
            if _connect(beat.address) == "refused":
                closed.append(beat)
        return closed

    def _exists(self, beat: Beat) -> bool:
        try:
            status = process_status(beat.pid)
        except (OSError, ValueError, IndexError):
            return True  # the system does not say: that proves nothing
        return (
            status is not None
            and status[0] not in ENDED
            and beat.process.rsplit("/", 2)[1:] == [str(beat.pid), status[1]]
        )


def _connect(address: str) -> str:
    """`accepted`, `refused`, or "" when nothing can be said."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
            return "accepted"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError, OverflowError):
        return ""
