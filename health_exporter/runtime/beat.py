"""Every rank's word about itself, through the job's store, to rank 0.

Nothing here runs on the training thread but `say_goodbye` and `close`, each for a bounded time.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from health_exporter.core.beat import Beat
from health_exporter.runtime.caller import Caller
from health_exporter.runtime.link import Link
from health_exporter.runtime.probe import ProcessProbe, process_identity
from health_exporter.runtime.store import JobStore, Store

log = logging.getLogger(__name__)

_LAST_RETRY_S = 10.0
"""Backoff of a lost store. A rank that took longer than `beat_timeout_s` to come back after the
store has, would be taken for dead; a third of it is the most."""

_CALL_S = 12.0
"""After this long a call is given up: a little longer than the store's own client waits."""

_LOOK_S = 0.5
"""How often rank 0 looks whether the processes of its own machine still exist: some 30 microseconds
each, and a killed one is known within a second."""

_FIRST_S = 1.0
_FIRST_FOR_S = 60.0
"""At the start, until the ranks have found each other, they look this often, but not for longer:
one that is killed before it was heard of cannot be missed."""

_IMPORT_S = 5.0
"""Time for the trainer to import torch itself, before it is imported for it."""

_PROBE_S = 2.0
"""A round's connections take about one second at most, when names are resolved at once."""

_GOODBYE_S = 2.0
"""A store that answers takes milliseconds; one that hangs must not hold up the end."""


class BeatExchange:
    """Sends this rank's beat every `beat_interval_s`; on rank 0, collects those of all ranks.

    All callbacks are called from one background thread. With one rank, or without torch, there is
    no store, and rank 0 gets its own beat alone.

    Args:
        rank: This rank.
        world_size: Ranks in the job.
        run: Name of the run; the keys' name space, together with `attempt`.
        attempt: How often the launcher has restarted the job.
        make_beat: This rank's beat now; its `beats` and `process` are filled in here.
        on_beats: On rank 0, each interval: the newest beat of every rank that has come, its own
            first, and whether the others' could be read. With no other rank, that is always true.
        on_gone: On rank 0, before `on_beats`: the process that sent this beat exists no more, and
            it did not say goodbye (`RankBoard.confirm_gone`).
        overdue: On rank 0: beats of ranks that have fallen silent (`RankBoard.overdue`).
        beat_interval_s: Seconds between two beats.
        beat_timeout_s: When a silent rank is taken for dead.
        environ: Environment variables, for `MASTER_ADDR` and `MASTER_PORT`.
        open_store: Connects to the store, or returns None while there is none. For tests.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        run: str,
        attempt: int | str,
        make_beat: Callable[[], Beat],
        on_beats: Callable[[Sequence[Beat], bool], None],
        on_gone: Callable[[Beat], None] | None = None,
        overdue: Callable[[], Sequence[Beat]] | None = None,
        beat_interval_s: float = 5.0,
        beat_timeout_s: float = 30.0,
        environ: Mapping[str, str],
        open_store: Callable[[], Store | None] | None = None,
    ) -> None:
        self._make_beat = make_beat
        self._on_beats = on_beats
        self._on_gone = on_gone
        self._silent = overdue
        self._rank = rank
        self._interval_s = beat_interval_s
        self._process = process_identity()
        self._beats = 0
        self._own: Beat | None = None
        self._probe = ProcessProbe()
        self._link: Link | None = None
        self._caller: Caller | None = None
        self._prober: Caller | None = None
        job_store = JobStore(f"health_exporter/{run}/{attempt}", environ)
        self._first_until = time.monotonic() + _FIRST_FOR_S
        self._import_at = time.monotonic() + min(_IMPORT_S, 2 * beat_interval_s)
        # Without a rendezvous there will be no store, and nothing to wait for at the end.
        self._may_join = open_store is not None or bool(environ.get("MASTER_ADDR"))
        if open_store is None:

            def open_store() -> Store | None:
                return job_store.connect(
                    may_import=job_store.expected() and time.monotonic() > self._import_at
                )

        if world_size > 1:
            last_retry_s = min(_LAST_RETRY_S, beat_timeout_s / 3)
            self._link = Link(rank, world_size, open_store, last_retry_s)
            self._caller = Caller("health-exporter-store")
            self._prober = Caller("health-exporter-probe") if rank == 0 else None
        self._connected = self._link is None
        self._troubles: set[str] = set()
        self._goodbye: str | None = None
        self._goodbye_sent = threading.Event()
        self._wake = threading.Event()
        self._stop = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="health-exporter-beat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()
        # A trainer that ends without closing must not leave a call into torch in flight.
        atexit.register(_close_if_alive, weakref.ref(self))

    @property
    def connected(self) -> bool:
        """Whether the last exchange with the other ranks worked; always true without others."""
        return self._connected

    def say_goodbye(self, state: str) -> bool:
        """Send this rank's last word at once; takes at most two seconds.

        Args:
            state: `finished`, `terminated`, `interrupted` or `failed`.

        Returns:
            Whether it was sent.
        """
        if os.getpid() != self._pid or not self._thread.is_alive():
            return False
        self._goodbye_sent.clear()
        self._goodbye = state
        self._wake.set()
        may_be_sent = self._connected or self._may_join
        return may_be_sent and self._goodbye_sent.wait(_GOODBYE_S)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; returns within `timeout_s`, even if the store hangs. May be called twice."""
        if os.getpid() != self._pid:
            return  # threads do not survive a fork, and locks may have been held
        deadline = time.monotonic() + timeout_s
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        for caller in (self._caller, self._prober):
            if caller is not None:
                caller.close(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._stop:
            began = time.monotonic()
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - logged; the thread survives any callback
                self._complain("round of beats", error)
            if self._goodbye_sent.is_set() and self._rank != 0:
                return  # rank 0 goes on: it may outlive the others
            self._sleep_until(began + self._pause_s(began))

    def _pause_s(self, now: float) -> float:
        link = self._link
        if link is None or now > self._first_until or (self._connected and link.complete):
            return self._interval_s
        return min(_FIRST_S, self._interval_s)

    def _sleep_until(self, then: float) -> None:
        """Sleep; on rank 0, with an eye on the processes of this machine."""
        while not self._stop:
            left = then - time.monotonic()
            if left <= 0 or self._wake.wait(min(left, _LOOK_S)):
                break
            if self._rank == 0 and self._connected and self._probe.ended():
                break
        self._wake.clear()

    def _round(self) -> None:
        goodbye = self._goodbye
        own = self._own_beat(goodbye)
        # Looked at before the others' beats are read: the last word of a process that has ended
        # is then among them.
        ended = self._probe.ended() if self._rank == 0 else []
        beats = self._exchange(own, at_once=goodbye is not None)
        try:
            if self._rank == 0:
                others = [beat for beat in beats if beat.rank != 0]
                if self._connected:
                    self._report_gone(ended, others)
                self._on_beats([own, *others], self._connected)
        finally:
            if goodbye is not None and self._connected:
                self._goodbye_sent.set()

    def _own_beat(self, goodbye: str | None) -> Beat:
        self._beats += 1
        try:
            self._own = self._make_beat()
        except Exception as error:
            if self._own is None:
                raise
            # A process that still beats lives, whatever is wrong with what it would say.
            self._complain("beat of this rank", error)
        changes: dict[str, object] = {"beats": self._beats, "process": self._process}
        if goodbye is not None:
            changes["state"] = goodbye
        return dataclasses.replace(self._own, **changes)  # type: ignore[arg-type]

    def _exchange(self, own: Beat, *, at_once: bool) -> Sequence[Beat]:
        link, caller = self._link, self._caller
        if link is None or caller is None:
            return ()
        if at_once:
            link.retry_now()
        try:
            timeout_s = min(_CALL_S, 2 * self._interval_s + 1)
            beats = caller.call(lambda: link.exchange(own), timeout_s)
        except Exception as error:  # noqa: BLE001 - logged; torch may raise anything
            what = "is gone" if self._connected else "cannot be reached"
            if self._connected or what not in self._troubles:
                self._troubles.add(what)
                why = str(error).partition("\n")[0] or type(error).__name__
                log.warning(
                    "beats of the other ranks: the job's store %s (%s); trying again until it "
                    "answers",
                    what,
                    why,
                )
            self._connected = False
            return ()
        if beats is not None and not self._connected:
            log.info("beats of the other ranks: connected to the job's store")
        self._connected = beats is not None
        return beats or ()

    def _report_gone(self, ended: Sequence[Beat], others: Sequence[Beat]) -> None:
        newest = {beat.rank: beat for beat in others}
        for beat in (*ended, *self._closed_endpoints(others)):
            last = newest.get(beat.rank)
            same = last is not None and (last.pid, last.host) == (beat.pid, beat.host)
            if last is not None and same and not last.said_goodbye and self._on_gone is not None:
                self._on_gone(last)
        self._probe.forget(ended)
        self._probe.learn(others)

    def _closed_endpoints(self, others: Sequence[Beat]) -> Sequence[Beat]:
        silent = self._silent() if self._silent is not None else ()
        probe = self._probe

        def look() -> Sequence[Beat]:
            probe.meet(others)
            return probe.refused(silent)

        if self._prober is None or self._silent is None:
            return ()
        try:
            # Resolving a name may take long, and has no time limit.
            return self._prober.call(look, _PROBE_S)
        except TimeoutError:
            return ()

    def _complain(self, part: str, error: Exception) -> None:
        """Log each trouble once."""
        trouble = f"{part}: {type(error).__name__}"
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            log.error("health exporter, %s failed", part, exc_info=error)


def _close_if_alive(reference: weakref.ref[BeatExchange]) -> None:
    exchange = reference()
    if exchange is not None:
        exchange.close()
