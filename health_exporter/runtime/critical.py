"""Where a signal's handler meets our code: it runs between any two instructions of ours."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import TracebackType


class Critical:
    """A section of the main thread that no signal's handler may end the process in.

    A handler runs between any two instructions of the main thread: in the middle of recording a
    step, or with a lock in hand that the end needs, too. Sections may be nested; in other threads
    they are nothing special, since those run on while the process ends.
    """

    __slots__ = ("_deferred", "_depth", "_main")

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._deferred: Callable[[], None] | None = None

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._deferred is not None and not self._depth:
            deferred, self._deferred = self._deferred, None
            deferred()

    def defer(self, end: Callable[[], None]) -> bool:
        """Have `end` called once the section is left; False if the main thread is in none."""
        if self._depth:
            self._deferred = end
        return self._depth > 0


def comes_from_handler(error: BaseException) -> bool:
    """Whether a handler of a signal, the trainer's own, has raised it in the middle of our code."""
    codes = set()
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is not None:
            codes.add(code)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
