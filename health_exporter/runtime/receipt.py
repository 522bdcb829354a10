"""The receipt on disk: what `kill -9` cannot take back.

`events.jsonl` gets a line, flushed and fsynced, for each event as it happens; `report.json` and
`state.json` are replaced atomically at every interval and at the end. All writing is done by one
thread, so that a slow disk never holds up the training thread for long.

`progress.json` holds the bare counters. It is replaced every few seconds and before each scrape is
answered, so that the counters of the next process go on from at least what a scrape has seen: one
that went back a little would look like a reset, and `rate()` would count everything again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from health_exporter.core import strict_json
from health_exporter.export.complaint import Complaints
from health_exporter.export.journal import Journal
from health_exporter.runtime.atomic_file import write_atomically

log = logging.getLogger(__name__)

_EVENT_WAIT_S = 0.1
"""The training thread waits this long for an event to be on disk: an fsync takes milliseconds, and
what is not written when `kill -9` comes is lost. A disk that takes longer is not waited for."""

_SCRAPE_WAIT_S = 0.02
"""A scrape waits this long for its counters to be on disk: that takes less than a millisecond, but
for the moments in which a report is written, too."""

_PROGRESS_S = 5.0
"""How often the bare counters are written: how exactly a lost run's last step is known."""

_FIRST_PAUSE_S = 1.0
"""The second report comes this soon, and each later pause is twice as long up to the interval: a
run that dies young leaves a baseline too."""

_CLOSE_S = 1.0
"""A write that is under way when the exporter closes may take this long; a disk that hangs is left
behind."""

_MAX_QUEUED = 10_000
_MAX_EVENTS = 10_000
"""Events kept in memory while the disk hangs, and events of one kind written in one attempt. More
are counted in the report, but a run that is sick at every step must not fill the disk."""


def run_folder(receipt_dir: str | Path, run: str) -> Path:
    """Folder of the run's receipts; characters that a file name cannot have are escaped."""
    name = quote(run, safe=" ")
    return Path(receipt_dir) / (name if name.strip(".") else name.replace(".", "%2E"))


class ReceiptWriter:
    """Writes the receipts of one run from a thread of its own.

    Args:
        folder: Where; made when missing.
        interval_s: Seconds between two reports.
        make_report: Gives the report so far; called in the writer's thread.
        make_state: Gives the state that the next process goes on from.
        make_progress: Gives the bare counters.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        folder: Path,
        interval_s: float,
        *,
        make_report: Callable[[], Mapping[str, Any]],
        make_state: Callable[[], Mapping[str, Any]],
        make_progress: Callable[[], Mapping[str, Any]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.failures = 0
        self.journal = Journal()
        self.written_time: float | None = None
        self.listener: Callable[[str, Mapping[str, Any]], None] | None = None
        """Told of every event, in the thread that has it."""
        self._interval_s = interval_s
        self._full = {"state.json": make_state, "report.json": make_report}
        self._make_progress = make_progress
        self._wall = wall
        self._complaints = Complaints(log)
        self._queue: queue.Queue[tuple[Callable[[], None], threading.Event]] = queue.Queue(
            _MAX_QUEUED
        )
        self._progress_asked: threading.Event | None = None
        self._closed = False
        self._counts: dict[str, int] = {}
        self._in_time = True
        self._thread = threading.Thread(
            target=self._run, name="health-exporter-receipts", daemon=True
        )

    def start(self) -> None:
        """Begin writing; the first report is written at once."""
        self._thread.start()

    def close(self) -> None:
        """Write nothing more: the folder may be another exporter's from now on."""
        self._closed = True
        with contextlib.suppress(queue.Full):  # then there is enough to wake it
            self._queue.put_nowait((lambda: None, threading.Event()))
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def event(self, event: str, **fields: Any) -> None:
        """Append an event; it is on disk on return, unless the disk is slow."""
        if self._closed:
            return
        self.journal.add(self._wall(), event, fields)
        if self.listener is not None:
            self.listener(event, fields)
        kind = str(fields.get("kind", event))
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if self._counts[kind] > _MAX_EVENTS:
            return
        record = {"time": round(self._wall(), 3), "event": event, **fields}
        line = json.dumps(strict_json.encode(record), allow_nan=False) + "\n"
        done = threading.Event()
        try:
            self._queue.put_nowait((lambda: self._append(line), done))
        except queue.Full:
            self.failures += 1
            return
        if self._in_time or self._queue.qsize() == 1:
            self._in_time = done.wait(_EVENT_WAIT_S)

    def request(self) -> None:
        """Write report and state soon, without waiting for it."""
        with contextlib.suppress(queue.Full):  # then the thread has more urgent things to write
            self._queue.put_nowait((self._write_full, threading.Event()))

    def scraped(self) -> None:
        """A scrape is about to be answered: have its counters on disk, unless the disk is slow."""
        asked = self._progress_asked
        if asked is None:
            asked = threading.Event()
            self._progress_asked = asked
            try:
                self._queue.put_nowait((self._write_progress, asked))
            except queue.Full:
                self._progress_asked = None
                return
        asked.wait(_SCRAPE_WAIT_S)

    def write(self, timeout_s: float) -> bool:
        """Write report and state now.

        Returns:
            Whether they were written within `timeout_s`.
        """
        done = threading.Event()
        failures = self.failures
        try:
            self._queue.put((self._write_full, done), timeout=timeout_s)
        except queue.Full:
            return False
        return done.wait(timeout_s) and self.failures == failures

    def _run(self) -> None:
        self._write_full()
        pause = min(_FIRST_PAUSE_S, self._interval_s)
        due = time.monotonic() + pause
        while not self._closed:
            left = due - time.monotonic()
            try:
                write, done = self._queue.get(timeout=max(0.0, min(left, _PROGRESS_S)))
            except queue.Empty:
                if left > _PROGRESS_S:
                    self._write_progress()
                else:
                    self._write_full()
                    pause = min(2.0 * pause, self._interval_s)
                    due = time.monotonic() + pause
                continue
            if not self._closed:
                write()
            done.set()

    def _append(self, line: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "events.jsonl").open("ab+") as file:
                end = file.seek(0, os.SEEK_END)
                if end:
                    file.seek(end - 1)
                    if file.read(1) != b"\n":  # cut short by the end of an earlier process
                        file.write(b"\n")
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            self._write_progress()
        except OSError as error:
            self._failed("events.jsonl", error)

    def _write_full(self) -> None:
        for name, make in self._full.items():
            self._replace(name, make, sync=True)
        self._write_progress()

    def _write_progress(self) -> None:
        self._progress_asked = None
        self._replace("progress.json", self._make_progress, sync=False)

    def _replace(self, name: str, make: Callable[[], Mapping[str, Any]], *, sync: bool) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(make(), allow_nan=False, indent=1 if name == "report.json" else None)
            write_atomically(self.folder / name, text + "\n", sync=sync)
        except Exception as error:  # noqa: BLE001  # logged and counted; the run goes on
            self._failed(name, error)
        else:
            if name == "report.json":
                self.written_time = self._wall()

    def _failed(self, name: str, error: BaseException) -> None:
        self.failures += 1
        self._complaints.warn(name, f"receipt {self.folder / name} could not be written", error)
