"""The beats' keys in the job's store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from health_exporter.core.beat import Beat
from health_exporter.runtime.store import Store

log = logging.getLogger(__name__)

_ROSTER = "roster"
"""Key to which each rank appends its number after it has set its own key: reading a key that does
not exist waits for it, and so would a rank that never comes make rank 0 wait."""

_FIRST_BEATS = 5
"""Rank 0 may need several: it may come later, and must tell them from those of a round before."""

_FIRST_RETRY_S = 1.0
_NOT_YET_RETRY_S = 3.0
"""While there is no store yet, which is ordinary at the start: one refused connection each time."""


class Link:
    """This rank's keys in the store. Used by one thread at a time."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        open_store: Callable[[], Store | None],
        last_retry_s: float,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._open_store = open_store
        self._last_retry_s = last_retry_s
        self._retry_s = min(_FIRST_RETRY_S, last_retry_s)
        self._retry_at = 0.0
        self._store: Store | None = None
        self._n_sent = self._n_heard = 0
        self._come: dict[int, str] = {}  # rank to key
        self._raw: dict[int, bytes] = {}
        self._beats: dict[int, Beat] = {}
        self._inherited: dict[int, bytes] | None = None

    @property
    def complete(self) -> bool:
        """Whether the ranks have found each other, as far as this one can tell."""
        if self._rank == 0:
            return self._n_heard == self._world_size
        return self._n_sent >= _FIRST_BEATS

    def retry_now(self) -> None:
        """The next exchange does not wait for the backoff."""
        self._retry_at = 0.0

    def exchange(self, own: Beat) -> list[Beat] | None:
        """Send `own`; on rank 0, the newest beat of each rank that has come.

        Returns:
            None while there is no store; an empty list on other ranks than 0.

        Raises:
            RuntimeError, OSError: The store is gone, or none answered.
        """
        try:
            store = self._store
            joined = store is not None
            if store is None:
                if time.monotonic() < self._retry_at:
                    return None
                store = self._open_store()
            if store is None:
                self._back_off(_NOT_YET_RETRY_S)
                return None
            store.set(f"{self._rank}", own.encode())
            self._n_sent += 1
            if not joined:
                store.append(_ROSTER, f"{self._rank},".encode())
                self._store = store
                self._retry_s = min(_FIRST_RETRY_S, self._last_retry_s)
            return self._read(store) if self._rank == 0 else []
        except Exception:
            self._store = None
            self._back_off(self._last_retry_s)
            raise

    def _back_off(self, longest_s: float) -> None:
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, longest_s, self._last_retry_s)

    def _read(self, store: Store) -> list[Beat]:
        if len(self._come) < self._world_size:
            for name in store.get(_ROSTER).decode().split(","):
                if name and int(name) < self._world_size:
                    self._come[int(name)] = name
        read = dict(zip(self._come, store.multi_get(list(self._come.values())), strict=True))
        if self._inherited is None:
            self._inherited = dict(read)
        for rank, raw in read.items():
            if self._raw.get(rank) == raw:
                continue
            self._raw[rank] = raw
            try:
                beat = Beat.decode(raw)
            except ValueError as error:
                log.debug("beat of rank %d: %s", rank, error)
                continue
            if beat.rank == rank:
                self._beats[rank] = beat
        heard = [beat for rank, beat in self._beats.items() if not self._is_stale(rank, beat)]
        self._n_heard = len(heard)
        return heard

    def _is_stale(self, rank: int, beat: Beat) -> bool:
        """Whether the beat may be that of a process of the round before.

        An elastic launcher that changes the number of ranks starts all of them anew, under the
        same number of restarts: the store still has the words of those before. They do not change
        any more. Only that a rank has failed or finished is believed at first sight: in such a
        round the launcher ends ranks with a signal, and they say `terminated`.
        """
        assert self._inherited is not None
        if rank in self._inherited:
            if self._raw[rank] == self._inherited[rank]:
                return beat.state not in ("failed", "finished")
            del self._inherited[rank]
        return False
