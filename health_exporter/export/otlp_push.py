"""Pushes metrics from a thread of its own: the training thread never waits for a collector."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from opentelemetry import context

from health_exporter.export.complaint import Complaints
from health_exporter.export.otlp import Message
from health_exporter.export.otlp_event import EventQueue
from health_exporter.export.otlp_http import SendError
from health_exporter.export.otlp_sender import Sender

log = logging.getLogger(__name__)

FLUSH_S = 5.0
"""The end waits at most this long for the last push: with the last receipt's five seconds, it fits
into torchrun's grace of 30 s several times."""

_MAX_RETRY_AFTER_S = 60.0
"""A collector may ask for a longer pause; it gets no longer one, as every rule would then take the
rank for dead."""

_GOLDEN = 0.6180339887
"""Multiples of it are spread evenly over [0, 1), however many ranks there are."""

# So that a tracer of the trainer's own does not trace our requests; the SDK's name for it, which
# is none of its public ones.
_QUIET = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")


class Push:
    """The pushes of one rank.

    Nothing is queued: a push that fails is lost, and the next has everything, so that a collector
    that is away costs no memory and finds the right counters when it is back.

    Args:
        make: Gives the message.
        sender: Delivers it.
        last_sender: Delivers the last one, within `FLUSH_S`, while `sender` may still be waiting.
        target: Where to, for log lines.
        rank: Number of this process, by which the ranks' pushes are spread over the interval.
        interval_s: Seconds between pushes.
        events: Log events to push; None: none are.
        on_pushed: Called after each push that arrived.
        monotonic: Seconds.
    """

    def __init__(
        self,
        make: Callable[[], Message],
        sender: Sender,
        last_sender: Sender,
        *,
        target: str,
        rank: int,
        interval_s: float,
        events: EventQueue | None = None,
        on_pushed: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        self.events = events
        self._make = make
        self._sender = sender
        self._last_sender = last_sender
        self._target = target
        self._first_pause_s = interval_s * (1.0 - rank * _GOLDEN % 1.0)
        self._interval_s = interval_s
        self._on_pushed = on_pushed
        self._monotonic = monotonic
        self._complaints = Complaints(log)
        self._is_failing = False
        self._ending = threading.Event()
        self._flush_at_end = False
        self._last_lock = threading.Lock()
        self._last_begun = False
        self._flushed = threading.Event()
        self._hurried = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="health-exporter-otlp", daemon=True)

    def start(self) -> None:
        """Push at once, so that counters are seen before anything happens, and from then on."""
        self._thread.start()

    def begin_flush(self) -> None:
        """The run has ended: push once more, without waiting for it; calling it again is nothing.

        A push that is under way is not waited for: it does not have the end, and its collector may
        be slow.
        """
        if self._flush_at_end:
            return
        self._deadline = self._monotonic() + FLUSH_S
        self._flush_at_end = True
        self._ending.set()
        try:
            threading.Thread(
                target=self._push_last, name="health-exporter-otlp-last", daemon=True
            ).start()
        except RuntimeError as error:  # at the end of the interpreter: then the old thread does it
            log.debug("no thread for the last push: %s", error)

    def wait_flushed(self) -> None:
        """Wait for the last push, for at most `FLUSH_S` since it was begun."""
        # In small waits, since `hurry` is called by a signal's handler, which must take no lock.
        while not (self._hurried or self._monotonic() > self._deadline):
            if self._flushed.wait(0.05):
                return
        log.info("the last push to %s is not waited for any longer", self._target)

    def hurry(self) -> None:
        """End `wait_flushed`."""
        self._hurried = True

    def close(self) -> None:
        """Push no more."""
        self._ending.set()

    def _run(self) -> None:
        context.attach(context.set_value(_QUIET, True))
        pause_s = self._first_pause_s
        due = self._monotonic()
        while not self._ending.is_set():
            wanted_s = self._push(self._sender)
            now = self._monotonic()
            due = max(due + pause_s, now, now + wanted_s)
            pause_s = self._interval_s
            self._ending.wait(due - now)
        if self._flush_at_end:
            self._push_last()

    def _push_last(self) -> None:
        with self._last_lock:
            if self._last_begun:
                return
            self._last_begun = True
        context.attach(context.set_value(_QUIET, True))
        self._push(self._last_sender)
        self._flushed.set()

    def _push(self, sender: Sender) -> float:
        """Push once.

        Returns:
            Seconds for which the collector wants to be left alone.
        """
        try:
            sender.send(self._make())
        except Exception as error:  # noqa: BLE001  # logged and counted; the run goes on
            self._is_failing = True
            return self._failed("metrics", error)
        if self._is_failing:
            self._is_failing = False
            log.info("metrics are pushed to %s again", self._target)
        self._on_pushed()
        if self.events is not None:
            try:
                self.events.send()
            except Exception as error:  # noqa: BLE001  # logged and counted; the run goes on
                return self._failed("events", error)
        return 0.0

    def _failed(self, what: str, error: Exception) -> float:
        self.failures += 1
        is_known = isinstance(error, SendError)
        message = f"{what} could not be pushed to {self._target}"
        self._complaints.warn(what, message, error, trace=not is_known)
        wanted_s = getattr(error, "retry_after_s", None) or 0.0
        return min(wanted_s, _MAX_RETRY_AFTER_S)
