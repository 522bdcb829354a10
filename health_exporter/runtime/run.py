"""What only rank 0 does: judge the run, keep its record on disk, and go on from an earlier one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import health_exporter
from health_exporter.core.anomaly import Anomaly
from health_exporter.core.flops import FLOPS_CONVENTION
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.core.standing import Standing, Suspect
from health_exporter.errors import StateError
from health_exporter.runtime import saved
from health_exporter.runtime.framework import device_name, framework_name
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.judge import Judge
from health_exporter.runtime.outage import OutageBook
from health_exporter.runtime.receipt import ReceiptWriter, run_folder
from health_exporter.runtime.report import (
    REPORT_SCHEMA_VERSION,
    describe_exception,
    iso_time,
    verdict,
)
from health_exporter.runtime.settings import Settings
from health_exporter.snapshot import RunView

log = logging.getLogger(__name__)

_FINAL_WRITE_S = 5.0
"""The last receipt may take this long: a hung file system must not hold up the end, of which
torchrun allows 30 s, for more."""

REJECTIONS = ("type", "value", "closed", "internal")
"""Why an observation was refused: wrong type; wrong value or order; after `close`; our fault."""


class Run:
    """The run, on rank 0.

    Args:
        settings: Settings.
        identity: Who this process is.
        monitor: Judges the steps.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        monitor: TrainingHealthMonitor,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.rejected = dict.fromkeys(REJECTIONS, 0)
        self.ranks: Mapping[str, int] = {"alive": 1, "missing": identity.world_size - 1}
        self.suspects: tuple[Suspect, ...] = ()
        self._wall = wall
        self._state = "starting"
        self._error: BaseException | None = None
        self._start_time = wall()
        self._ended_time: float | None = None
        # A monitor that has judged steps brings its own past; only an unused one is given ours.
        self._unused = monitor.run.n_steps == 0
        self.judge = Judge(monitor, wall=wall)
        self._resuming = not self._unused
        self._began = False
        self._previous: str | None = None
        self._aside: dict[str, str | None] | None = None
        self.receipts = ReceiptWriter(
            run_folder(settings.receipt_dir, settings.run),
            settings.receipt_interval_s,
            make_report=self.report,
            make_state=self._saved_state,
            make_progress=self._saved_progress,
            wall=wall,
        )
        self._outages = OutageBook(self.judge, self.receipts, wall=wall)

    def take_over(self) -> None:
        """Go on from what an earlier process left on disk, or put it aside."""
        folder = self.receipts.folder
        try:
            state = saved.read_state(folder, self.settings.run)
            if state is None:
                return
            saved.bring_up_to_date(state, folder)
            self._previous = str(state.get("state"))
            if self._previous == "finished":
                self._put_aside(f"run {self.settings.run!r} had finished")
            elif self._unused:
                outages = saved.outages(state)
                self.judge.load(state["judge"])
                self._outages.load(outages)
                self._resuming = self.judge.first_step is not None
        except StateError as error:
            self._put_aside(str(error))
        except Exception as error:  # noqa: BLE001  # whatever is in the file, the run starts
            self._put_aside(f"the saved state of run {self.settings.run!r} is damaged: {error!r}")

    def start(self) -> None:
        """Begin to write."""
        self.receipts.start()
        self.receipts.event(
            "start",
            attempt=self.identity.attempt,
            host=self.identity.host,
            pid=os.getpid(),
            world_size=self.identity.world_size,
            previous_state=self._previous,
            **({} if self._aside is None else {"put_aside": self._aside}),
        )

    def _put_aside(self, why: str) -> None:
        log.warning("%s; the run starts a fresh record", why)
        try:
            aside = saved.put_aside(self.receipts.folder)
        except OSError as error:
            log.warning("the earlier record could not be put aside: %s", error)
            aside = None
        self._aside = {"reason": why, "folder": None if aside is None else aside.name}

    def observe(
        self,
        step: int,
        loss: float,
        *,
        grad_norm: float | None,
        step_time_s: float | None,
        batch_size: int | None,
        restart: bool,
    ) -> list[Anomaly]:
        """Judge a step and record its events.

        Raises:
            TypeError, ValueError: As of `TrainingHealthMonitor.observe_step`; nothing is recorded.
        """
        first = not self._began
        if first and self._resuming:
            first_step = self.judge.first_step
            if not restart and first_step is not None and _at_or_before(step, first_step):
                self._start_over(first_step)
            else:
                restart = True
        before = self.judge.view
        found, n_anomalies = self.judge.observe(
            step,
            loss,
            grad_norm=grad_norm,
            step_time_s=step_time_s,
            batch_size=batch_size,
            restart=restart,
        )
        if first:
            self._began = True
            self._resuming = False
            if self._state == "starting":
                self.set_state("running")
        if restart:
            view = self.judge.view
            lost = view.lost_steps - before.lost_steps
            self.receipts.event(
                "restart",
                number=view.n_restarts,
                step=view.step,
                last_step=before.step,
                lost_steps=lost,
            )
        for number, anomaly in enumerate(found, n_anomalies - len(found) + 1):
            self.receipts.event("anomaly", number=number, **anomaly.as_dict())
        return found

    def _start_over(self, first_step: int) -> None:
        name = self.settings.run
        self._put_aside(f"run {name!r} begins again at or before its first step {first_step}")
        self.judge.reset()
        self._resuming = False
        self.receipts.event("new_run", put_aside=self._aside)
        self.receipts.request()

    def update_ranks(self, standing: Standing) -> None:
        """The ranks have been judged; called from a background thread."""
        self.ranks = standing.counts
        self.suspects = standing.suspects
        self._outages.update(standing)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint carries; see `HealthExporter.state_dict`."""
        return self.judge.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state.

        Counters go on from whatever knows of more steps: the file has seen those after the
        checkpoint too, which are now done again.

        Raises:
            StateError: The state is damaged or of a newer version; nothing has changed then.
        """
        known = self.judge.state() if self._resuming and not self._began else None
        self.judge.load(state)
        self._resuming = self.judge.first_step is not None
        if known is None:
            return
        loaded = self.judge.state()
        steps, file_steps = (s["monitor"]["run"]["n_steps"] for s in (loaded, known))
        last, file_last = (s["monitor"]["run"]["last_step"] for s in (loaded, known))
        if file_steps >= steps:
            monitor = TrainingHealthMonitor.resumed_state(loaded["monitor"], known["monitor"])
            self.judge.load({**known, "monitor": monitor})
        self.receipts.event("checkpoint_loaded", step=last, last_step=file_last)
        if file_last < last:
            log.warning(
                "the checkpoint is of step %d, but the record on disk ends at step %d: it may be "
                "of another attempt",
                last,
                file_last,
            )

    @property
    def state(self) -> str:
        """One of `snapshot.RUN_STATES`."""
        return self._state

    def set_state(self, state: str, error: BaseException | None = None) -> None:
        """The run is in a new state."""
        self._state = state
        self._error = error
        fields = {} if error is None else {"exception": describe_exception(error)}
        self.receipts.event("state", state=state, step=self.judge.view.step, **fields)

    def finish(self, state: str, error: BaseException | None) -> bool:
        """The run has ended.

        Returns:
            Whether the last receipt was written.
        """
        self._ended_time = self._wall()
        self.set_state(state, error)
        return self.receipts.write(_FINAL_WRITE_S)

    def view(self) -> RunView:
        """What a scrape shows of the run."""
        return RunView(
            self._info(),
            self._state,
            self._start_time,
            self.identity.world_size,
            self.judge.monitor.peak_flops_per_sec,
            self.judge.view,
            self.judge.goodput(),
            self.ranks,
            self.suspects,
            dict(self.rejected),
            self.receipts.failures,
            self.receipts.written_time,
            self.judge.first_start_time,
        )

    def _info(self) -> dict[str, str]:
        has_flops = self.judge.monitor.flop_config is not None
        return {
            "model": self.settings.model,
            "framework": framework_name(),
            "world_size": str(self.identity.world_size),
            "version": health_exporter.__version__,
            "device": device_name(),
            "flops_convention": FLOPS_CONVENTION if has_flops else "",
        }

    def report(self) -> dict[str, Any]:
        """The receipt so far, as strict JSON; described by `report.schema.json`."""
        judged = self.judge.report()
        suspects = [asdict(suspect) for suspect in self.suspects]
        now = self._wall()
        return {
            "schema_version": REPORT_SCHEMA_VERSION,
            "run": self.settings.run,
            "status": self._state,
            **verdict(self._state, {**judged, "suspects": suspects}),
            "exception": None if self._error is None else describe_exception(self._error),
            "started_at": iso_time(self.judge.first_start_time),
            "attempt_started_at": iso_time(self._start_time),
            "ended_at": None if self._ended_time is None else iso_time(self._ended_time),
            "written_at": iso_time(now),
            "wall_s": now - self.judge.first_start_time,
            "receipt_interval_s": self.settings.receipt_interval_s,
            "host": self.identity.host,
            "pid": os.getpid(),
            "attempt": self.identity.attempt,
            **{key: value for key, value in self._info().items() if key != "world_size"},
            "world_size": self.identity.world_size,
            "ranks": dict(self.ranks),
            "suspects": suspects,
            "peak_flops_per_sec": self.judge.monitor.peak_flops_per_sec,
            "rejected_observations": dict(self.rejected),
            "receipt_write_failures": self.receipts.failures,
            **judged,
            "outages": [*judged["outages"], *self._outages.listed()],
        }

    def _saved_state(self) -> dict[str, Any]:
        return saved.make_state(
            self.settings.run, self._state, self.judge, self._outages, self._wall()
        )

    def _saved_progress(self) -> dict[str, Any]:
        return saved.make_progress(self.settings.run, self.judge, self._wall())


def _at_or_before(step: object, first_step: int) -> bool:
    try:
        return int(step) <= first_step  # type: ignore[call-overload, no-any-return]  # checked later
    except (TypeError, ValueError):
        return False
