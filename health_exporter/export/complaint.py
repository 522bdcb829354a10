"""Log lines about what may go wrong again at every scrape for weeks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

# Routes are scraped every few seconds; one traceback a minute tells as much as all of them.
INTERVAL_S = 60.0


class Complaints:
    """Warns at most once per `INTERVAL_S` and cause, and says how many were left out between.

    The causes must be few and known beforehand (routes, say, and no text of a client's), as each
    is remembered.
    """

    def __init__(
        self, log: logging.Logger, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, cause: str, message: str, error: BaseException, *, trace: bool = False) -> None:
        """Log `message` and `error`, with its traceback if `trace`."""
        now = self._monotonic()
        with self._lock:
            if now < self._next.get(cause, now):
                self._left_out[cause] = self._left_out.get(cause, 0) + 1
                return
            self._next[cause] = now + INTERVAL_S
            left_out = self._left_out.pop(cause, 0)
        before = f" ({left_out} more since the last such line)" if left_out else ""
        self._log.warning("%s: %r%s", message, error, before, exc_info=error if trace else None)
