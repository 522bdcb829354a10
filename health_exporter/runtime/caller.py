"""Calls that may never return, made where nobody has to wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Caller:
    """Makes calls, one at a time, on a daemon thread that starts with the first one.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._job: Callable[[], object] | None = None
        self._outcome: tuple[object, BaseException | None] = (None, None)
        self._stop = False
        self._thread: threading.Thread | None = None

    def call(self, job: Callable[[], T], timeout_s: float) -> T:
        """What `job` returns or raises.

        Raises:
            TimeoutError: It has not returned in time, or the one before it still has not.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            if self._job is not None:
                raise TimeoutError("no answer yet")
            self._job = job
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._job is None, timeout_s):
                raise TimeoutError(f"no answer in {timeout_s:g} s")
            value, error = self._outcome
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # of this call: there is one at a time

    def close(self, timeout_s: float) -> None:
        """End the thread, if it is not held by a call."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._stop)
                job = self._job
            if job is None:
                return
            try:
                outcome: tuple[object, BaseException | None] = (job(), None)
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                outcome = (None, error)
            with self._changed:
                self._outcome = outcome
                self._job = None
                self._changed.notify_all()
