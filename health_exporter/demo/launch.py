"""The demo from beginning to end: the job, its fault, its resume, its receipt."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from health_exporter.demo.fault import FAULTS
from health_exporter.demo.job import Job
from health_exporter.demo.progress import StepProgress
from health_exporter.demo.settings import DemoSettings
from health_exporter.demo.text import found_line, introduction, prometheus_configuration
from health_exporter.errors import ReceiptError
from health_exporter.receipt_table import render
from health_exporter.runtime.receipt import run_folder
from health_exporter.runtime.receipt_reader import read_receipt

# Exit statuses of a program ended by a signal, as shells give them.
_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


@dataclass(slots=True)
class _Watched:
    """What was seen of the job, over all attempts."""

    serving: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Each rank's `serving` event."""

    fault: dict[str, Any] | None = None
    """The `fault` event."""

    losses: list[float] = field(default_factory=list)
    """The first loss and the last."""

    ended_by_launcher: bool = False


class Launcher:
    """Runs the demo and says what happens.

    Args:
        settings: Of the run.
        console: Where to print.
        environ: Environment of the ranks.
        listen: Called with each event that a rank tells.
    """

    def __init__(
        self,
        settings: DemoSettings,
        console: Console,
        environ: Mapping[str, str] = os.environ,
        *,
        listen: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        self._settings = settings
        self._console = console
        self._environ = environ
        self._listen = listen
        self._fault = FAULTS[settings.fault]
        self._out = Path(settings.out)
        self._settings_path = self._out / "demo.json"
        self._log_path = self._out / "trainer.log"
        self._watched = _Watched()

    def run(self) -> int:
        """Train, break, resume, report.

        Returns:
            0: the run finished, and its receipt calls it healthy. 1: it did not finish, is not
            healthy, or the fault that it was given was not found. 130 or 143: it was ended by
            SIGINT or SIGTERM.

        Raises:
            OSError: The output folder cannot be written.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        self._settings.write(self._settings_path)
        self._log_path.write_bytes(b"")
        # Of an earlier demo; a first attempt never resumes.
        self._settings.checkpoint_path.unlink(missing_ok=True)
        status, stopped = 1, 0
        try:
            with _sigterm_as_exit():
                status = self._train()
        except KeyboardInterrupt:
            stopped = _INTERRUPTED
        except SystemExit:
            stopped = _TERMINATED
        receipt = self._read_receipt()
        if receipt is not None:
            self._show(receipt)
        if stopped:
            self._say("ended from outside; no process is left")
            return stopped
        return self._verdict(receipt, finished=status == 0)

    def _train(self) -> int:
        """Exit status of the job, the resumed one if there is a resume."""
        with StepProgress(self._console, self._settings.steps) as progress:
            status = self._attempt(0, progress)
            planned = self._fault.resumes and self._watched.fault is not None
            if planned:
                progress.note(f"resuming from {self._settings.checkpoint_path} in new processes")
                status = self._attempt(1, progress)
        return status

    def _attempt(self, attempt: int, progress: StepProgress) -> int:
        job = Job(
            self._settings,
            self._settings_path,
            attempt=attempt,
            log_path=self._log_path,
            environ=self._environ,
        )
        self._watched.serving.clear()
        try:
            self._watch(job, attempt, progress)
            return job.wait()
        except KeyboardInterrupt:
            job.end(signal.SIGINT)
            raise
        except SystemExit:
            job.end(signal.SIGTERM)
            raise
        finally:
            job.close()

    def _watch(self, job: Job, attempt: int, progress: StepProgress) -> None:
        """Follow the job to its end, and be its end if the fault leaves it without one."""
        until: float | None = None
        while True:
            try:
                event = job.next_event(until)
            except TimeoutError:
                self._end_held(job, progress)
                until = None
                continue
            if event is None:
                return
            self._listen(event)
            if event["event"] == "step":
                self._watched.losses = [*self._watched.losses[:1], event["loss"]]
                progress.show(event)
            elif event["event"] == "serving":
                self._note_serving(event, attempt, progress)
            elif event["event"] == "log":
                progress.note(f"{event['level'].lower()}: {event['message']}")
            elif event["event"] == "fault":
                self._watched.fault = event
                progress.note(self._fault_line(event))
                if self._fault.holds:
                    until = time.monotonic() + self._settings.fault_hold_s

    def _note_serving(self, event: dict[str, Any], attempt: int, progress: StepProgress) -> None:
        serving = self._watched.serving
        serving[event["rank"]] = event
        if len(serving) < self._settings.ranks:
            return
        ports = [serving[rank]["port"] for rank in sorted(serving)]
        path = self._out / "prometheus.yml"
        path.write_text(prometheus_configuration(ports), encoding="utf-8")
        for line in introduction(self._settings, serving, path, first=attempt == 0):
            progress.note(line)

    def _end_held(self, job: Job, progress: StepProgress) -> None:
        fault = self._watched.fault
        assert fault is not None
        progress.note(f"{self._settings.fault_hold_s:g} s have passed: ending the job")
        self._watched.ended_by_launcher = True
        stopped = self._settings.fault == "stop-rank"
        job.end(signal.SIGTERM, stopped_pid=fault["pid"] if stopped else None)

    def _fault_line(self, event: Mapping[str, Any]) -> str:
        held = (
            f"; nothing ends it, and the launcher will in {self._settings.fault_hold_s:g} s"
            if self._fault.holds
            else ""
        )
        where = f"rank {event['rank']} (process {event['pid']})"
        return f"fault {self._settings.fault} in step {event['step']}, {where}{held}"

    def _read_receipt(self) -> dict[str, Any] | None:
        try:
            return read_receipt(run_folder(self._settings.receipt_dir, self._settings.run))
        except ReceiptError as error:
            self._say(f"no receipt: {error}")
            return None

    def _show(self, receipt: Mapping[str, Any]) -> None:
        """The receipt as a table, and the losses, of which the receipt keeps no history."""
        shown = {name: value for name, value in receipt.items() if name != "path"}
        if losses := self._watched.losses:
            shown["loss"] = {"first": losses[0], "last": losses[-1]}
        self._console.print(render(shown))

    def _verdict(self, receipt: Mapping[str, Any] | None, *, finished: bool) -> int:
        """Say how it went; the exit status."""
        anomalies = [] if receipt is None else receipt["anomalies"]
        found = [anomaly for anomaly in anomalies if anomaly["kind"] in self._fault.kinds]
        self._say(found_line(self._settings, found, anomalies, finished=finished))
        if not finished:
            if self._watched.ended_by_launcher:
                self._say("every process of the job has been ended")
            self._say(f"output of the ranks: {self._log_path}")
        if receipt is None:
            return 1
        self._say(f"receipt: {receipt['path']}")
        missed = self._fault.kinds and not found
        return 0 if finished and receipt["healthy"] and not missed else 1

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that no rank outlives the launcher."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's affair
        return

    def leave(signum: int, frame: object) -> None:
        raise SystemExit(_TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
