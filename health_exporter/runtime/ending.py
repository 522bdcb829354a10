"""How a process ends: hears of it, lets exporters finish, and leaves the end as it was.

Returns and exceptions that leave the `with` block are the exporter's own matter. This module adds
what goes around it: `atexit`, uncaught exceptions outside of the block, and SIGTERM, whose default
action kills the process without a word.

A Python signal handler runs in the main thread, and only when that thread comes back from native
code. A trainer that hangs in a collective never does, and a process that SIGTERM would have killed
at once would then hang until SIGKILL. So the interpreter is also asked to write the signal's
number into a socket, and a thread that reads it finishes in place of a main thread that does not
come.

A child that was just forked, or forked by native code, still has the handler and the socket. So a
fork is made with SIGTERM blocked until the child has let go of both, and the kernel is asked who
has written the number.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol

from health_exporter.export import fork

log = logging.getLogger(__name__)

_UCRED = struct.Struct("iII")
"""The kernel's `struct ucred`: process, user and group that have written to a socket."""

_MAIN_THREAD_S = 2.0
"""The main thread is given this long to handle a signal itself, so that the receipt holds its last
step; torchrun's and Kubernetes' grace is 30 s."""


class Finisher(Protocol):
    """Wants to know that the process ends."""

    def finish(self, status: str, error: BaseException | None) -> None:
        """The process ends with `status`; called once or more, from any thread."""

    def defer(self, end: Callable[[], None]) -> bool:
        """Whether `end` will be called soon: once the main thread leaves a critical section.

        False if it is in none: then the caller goes on by itself.
        """

    def hurry(self) -> None:
        """A second signal: wait for nothing more."""


class Ending:
    """Hooks of one process; installed while there is a finisher."""

    def __init__(self) -> None:
        self._finishers: list[Finisher] = []
        self._installed = False
        self._hooked = False
        self._forking = threading.local()
        self._uncaught: BaseException | None = None
        self._excepthook: Callable[..., Any] = sys.__excepthook__
        self._previous: Any = None
        self._handling = False
        self._terminated = False
        self._in_main_thread = threading.Event()
        self._in_thread = False
        self._bell: tuple[socket.socket, socket.socket] | None = None

    @property
    def terminated(self) -> bool:
        """Whether SIGTERM has come; a handler of the trainer's own may have kept us alive."""
        return self._terminated

    def add(self, finisher: Finisher) -> None:
        """Tell `finisher` when the process ends."""
        self._finishers.append(finisher)
        if not self._installed:
            self._install()

    def remove(self, finisher: Finisher) -> None:
        """`finisher` has finished; with the last one the hooks go, too."""
        with contextlib.suppress(ValueError):
            self._finishers.remove(finisher)
        if not self._finishers:
            self._uninstall()

    def abandon_in_child(self) -> None:
        """In a forked child: its end is not the trainer's end."""
        self._finishers = []
        self._uninstall()
        self._uninstall_signal()

    def _install(self) -> None:
        self._installed = True
        self._excepthook, sys.excepthook = sys.excepthook, self._on_uncaught
        atexit.register(self._at_exit)
        fork.watch(self)
        if not self._hooked:
            # After those of `fork`, which have then let go of the handler in the child.
            os.register_at_fork(
                before=self._block, after_in_parent=self._unblock, after_in_child=self._unblock
            )
            self._hooked = True
        if threading.current_thread() is threading.main_thread():
            self._install_signal()
        else:
            log.info("not in the main thread: SIGTERM will leave no receipt")

    def _block(self) -> None:
        """Before a fork: a SIGTERM to the child waits until the child has its own handlers."""
        self._forking.mask = (
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if self._installed else None
        )

    def _unblock(self) -> None:
        mask = getattr(self._forking, "mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _install_signal(self) -> None:
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN:
            return  # not ours to change: SIGTERM is handled outside of Python, or has no effect
        if os.getpid() == 1 and previous is signal.SIG_DFL:
            return  # the first process of a container: without a handler SIGTERM has no effect
        if previous == self._on_signal:
            return  # left by an exporter that was closed in another thread
        self._previous = previous
        signal.signal(signal.SIGTERM, self._on_signal)
        if previous is signal.SIG_DFL:
            self._install_bell()

    def _install_bell(self) -> None:
        reader, writer = socket.socketpair()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        writer.setblocking(False)
        taken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if taken != -1:  # an event loop's: it would miss its signals
            signal.set_wakeup_fd(taken)
            reader.close()
            writer.close()
            return
        self._bell = (reader, writer)
        threading.Thread(
            target=self._listen, args=(reader,), name="health-exporter-signals", daemon=True
        ).start()

    def _uninstall(self) -> None:
        if not self._installed:
            return
        self._installed = self._terminated = False
        self._in_main_thread.clear()
        if sys.excepthook == self._on_uncaught:
            sys.excepthook = self._excepthook
        atexit.unregister(self._at_exit)
        try:
            self._uninstall_signal()
            fork.unwatch(self)
        except ValueError:
            # Not in the main thread, so that the hooks stay, to be taken over by the next exporter
            # or to let SIGTERM have its default effect. The bell, above all, must stay open: the
            # interpreter would write into whatever file is given its number next.
            log.debug("closed outside of the main thread: the signal's hooks stay")

    def _uninstall_signal(self) -> None:
        if self._bell is not None:
            wakeup = signal.set_wakeup_fd(-1)
            if wakeup not in (-1, self._bell[1].fileno()):
                signal.set_wakeup_fd(wakeup)
            for end in self._bell:
                end.close()
            self._bell = None
        if self._previous is not None and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._previous)

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._uncaught = error
        self._excepthook(kind, error, trace)

    def _at_exit(self) -> None:
        error = self._uncaught
        if self._terminated:
            status = "terminated"
        elif isinstance(error, KeyboardInterrupt):
            status = "interrupted"
        else:
            status = "finished" if error is None else "failed"
        self._finish(status, error)

    def _finish(self, status: str, error: BaseException | None) -> None:
        for finisher in list(self._finishers):
            finisher.finish(status, error)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        end = functools.partial(self._go_on, signum, frame)
        if self._previous is signal.SIG_DFL and self._terminated:
            for finisher in list(self._finishers):
                finisher.hurry()
            # Else the other thread is about to end the process.
            if self._in_thread and not any(f.defer(end) for f in list(self._finishers)):
                threading.Event().wait()
            return
        self._terminated = True
        if not any(finisher.defer(end) for finisher in list(self._finishers)):
            end()

    def _go_on(self, signum: int, frame: FrameType | None) -> None:
        """What the signal would have done without us, after our own part of it."""
        self._in_main_thread.set()
        if not callable(self._previous) or self._handling:
            # A handler of the trainer's that was set over ours calls it, and was then taken for
            # the one before ours: the one before both was the default.
            self._terminate()
            return
        self._handling = True
        try:
            self._previous(signum, frame)
        finally:
            self._handling = False

    def _terminate(self) -> None:
        """Finish, then die of SIGTERM as if nobody had handled it."""
        self._finish("terminated", None)
        # From C, since Python sets handlers in the main thread only.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(0))
        os.kill(os.getpid(), signal.SIGTERM)

    def _listen(self, reader: socket.socket) -> None:
        while True:
            try:
                numbers, ancillary, _, _ = reader.recvmsg(64, socket.CMSG_SPACE(_UCRED.size))
            except OSError:
                return
            if not numbers:
                return
            if (
                signal.SIGTERM in numbers
                and any(_UCRED.unpack(who)[0] == os.getpid() for _, _, who in ancillary)
                and not self._in_main_thread.wait(_MAIN_THREAD_S)
            ):
                self._terminated = self._in_thread = True
                self._terminate()


ENDING = Ending()
"""The hooks of this process; signals and `atexit` are the process's, so there is one."""
