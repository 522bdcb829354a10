"""`HealthExporter`: the three lines that a trainer adds."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from health_exporter.core import argument
from health_exporter.core.anomaly import Anomaly
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.errors import StateError
from health_exporter.export.complaint import Complaints
from health_exporter.export.page_view import PageView
from health_exporter.runtime.critical import Critical, comes_from_handler
from health_exporter.runtime.ending import ENDING
from health_exporter.runtime.exporter_end import ExporterEnd
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.pending_step import PendingSteps
from health_exporter.runtime.settings import Settings
from health_exporter.runtime.this_rank import ThisRank
from health_exporter.snapshot import TERMINAL_STATES, RankView, Snapshot

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from typing_extensions import Unpack

    from health_exporter.runtime.settings import SettingsArguments

log = logging.getLogger(__name__)


class HealthExporter:
    """Judges a training run from inside, and publishes the judgement.

    Make one on every rank, before `init_process_group` (a job that hangs in its rendezvous is
    visible then), and call `observe_step` after each optimizer step. Rank 0 judges the steps and
    keeps the record on disk; every rank serves `/metrics`.

    Nothing that goes wrong here reaches the training loop: it is logged, at most once a minute,
    and counted. Wrong settings are an error at once.

    Args:
        monitor: Judges the steps on rank 0; None: `TrainingHealthMonitor.production()`.
        settings: As of `runtime.settings.Settings`, which says what each means; `run` is
            required. Each can also come from the environment variable `HEALTH_EXPORTER_<NAME>`,
            or from the YAML file that `HEALTH_EXPORTER_CONFIG` names.

    Raises:
        SettingsError: Settings are missing, unknown or out of range; it lists every problem.
        TypeError: `monitor` is no `TrainingHealthMonitor`.
        EndpointError: With `strict`, when the port is taken.

    Example:
        with HealthExporter(run="llama-8b-v3") as exporter:
            for step, batch in enumerate(loader):
                loss, grad_norm = train_step(model, batch)
                exporter.observe_step(step, loss, grad_norm=grad_norm, batch_size=8)
    """

    def __init__(
        self,
        monitor: TrainingHealthMonitor | None = None,
        **settings: Unpack[SettingsArguments],
    ) -> None:
        if monitor is not None and not isinstance(monitor, TrainingHealthMonitor):
            raise TypeError(f"monitor must be a TrainingHealthMonitor or None, got {monitor!r}")
        self.settings = Settings.resolve(settings, os.environ)
        self.identity = Identity.find(self.settings, os.environ)
        self.monitor = TrainingHealthMonitor.production() if monitor is None else monitor
        self._complaints = Complaints(log)
        self._critical = Critical()
        self._this_rank = ThisRank(self.settings, self.identity, self.monitor, os.environ)
        self._run, self._progress = self._this_rank.run, self._this_rank.progress
        self._pending = PendingSteps(self._judge)
        self._end = ExporterEnd(
            self._this_rank, self._critical, self._judge_pending, self._complaints
        )
        self._this_rank.start()
        ENDING.add(self._end)

    @property
    def rank(self) -> int:
        """Number of this process in the job."""
        return self.identity.rank

    @property
    def port(self) -> int | None:
        """Port that is listened on; None without an endpoint."""
        return self._this_rank.server.port

    @property
    def url(self) -> str | None:
        """Where `/metrics` is found from this machine; None without an endpoint."""
        return self._this_rank.server.url

    @property
    def address(self) -> str:
        """`host:port` at which others reach this rank's endpoint; "" without one."""
        return self._this_rank.address

    @property
    def receipt_path(self) -> Path | None:
        """The receipt, `report.json`; None on ranks other than 0."""
        return None if self._run is None else self._run.receipts.folder / "report.json"

    @property
    def state(self) -> str:
        """One of `starting`, `running`, `finished`, `terminated`, `interrupted`, `failed`."""
        return self._this_rank.state

    def observe_step(
        self,
        step: int,
        loss: Any,
        *,
        grad_norm: Any = None,
        step_time_s: float | None = None,
        batch_size: int | None = None,
        restart: bool = False,
    ) -> list[Anomaly]:
        """Record one optimizer step; call it on every rank, once a step.

        Ranks other than 0 only note that they progress: they read neither loss nor gradient norm.

        Args:
            step: Number of the step (>= 0), above the one before; after a resume it may go back.
            loss: Training loss: a number, a NumPy scalar or a 0-d tensor. A tensor on an
                accelerator is copied to the host asynchronously and judged at the next call.
            grad_norm: Global gradient norm, likewise.
            step_time_s: Wall time of the step in seconds; None: measured, from the last call to
                this one, without phases marked `checkpoint` or `eval`.
            batch_size: Sequences in the step, over the same devices as the monitor's
                `peak_flops_per_sec`: both of this rank, or both of the whole job.
            restart: True on the first step after a resume. A resume by a new process is noticed
                without it.

        Returns:
            The anomalies found now; of a tensor on an accelerator, those of the step before.

        Raises:
            TypeError, ValueError: With `strict` only, where the monitor would.
            RuntimeError: With `strict` only, after `close`.
        """
        if self._this_rank.inert:
            return []
        with self._critical:
            try:
                if self._end.closed:
                    raise RuntimeError(f"observe_step({step!r}) after close()")
                return self._observe(step, loss, grad_norm, step_time_s, batch_size, restart)
            except Exception as error:
                if comes_from_handler(error):
                    raise
                self._reject(error)
                if self.settings.strict:
                    raise
                return []

    def _observe(
        self,
        step: int,
        loss: Any,
        grad_norm: Any,
        step_time_s: float | None,
        batch_size: int | None,
        restart: bool,
    ) -> list[Anomaly]:
        number = step if type(step) is int else argument.integer(step, "step", minimum=0)
        if restart:
            self._progress.forget_last_step()
        measured_s = self._progress.observe_step(number)
        if self._run is None:
            self._this_rank.own_state = "running"
            return []
        observation = {
            "step": number,
            "loss": loss,
            "grad_norm": grad_norm,
            "step_time_s": measured_s if step_time_s is None else step_time_s,
            "batch_size": batch_size,
            "restart": restart,
        }
        return self._pending.observe(observation)

    def _judge(self, **observation: Any) -> list[Anomaly]:
        assert self._run is not None
        found = self._run.observe(**observation)
        self._this_rank.own_state = self._run.state
        return found

    def _judge_pending(self, *, wait: bool) -> None:
        """Judge the steps that are pending: all, or those whose values surely have arrived."""
        while self._pending.has_next(wait=wait):
            try:
                self._pending.judge_oldest()
            except Exception as error:
                if comes_from_handler(error):
                    raise
                self._reject(error)
                if self.settings.strict:
                    raise

    def _reject(self, error: Exception) -> None:
        self._progress.advance()
        if isinstance(error, RuntimeError) and self._end.closed:
            reason = "closed"
        elif isinstance(error, TypeError):
            reason = "type"
        else:
            reason = "value" if isinstance(error, ValueError) else "internal"
        self._count_refusal(reason)
        self._complaints.warn(reason, "observation refused", error, trace=reason == "internal")

    def _count_refusal(self, reason: str) -> None:
        if self._run is not None:
            self._run.rejected[reason] += 1

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Mark what the training thread is doing, as a context manager; marks may be nested.

        Marks make it possible to tell which rank the others wait for, and in what; `checkpoint`
        and `eval` have timeouts of their own and are no part of a step's time.

        Args:
            name: `data`, `forward`, `backward`, `optimizer`, `checkpoint` or `eval`.

        Raises:
            ValueError: With `strict` only, when `name` is none of these.
        """
        try:
            return self._progress.phase(name)
        except ValueError as error:
            self._count_refusal("value")
            self._complaints.warn("phase", "phase not marked", error)
            if self.settings.strict:
                raise
            return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should carry: baselines, counters, restart history; strict JSON.

        Ranks other than 0 have nothing to carry: {}.
        """
        if self._run is None or self._this_rank.inert:
            return {}
        with self._critical:
            self._judge_pending(wait=True)
            return self._run.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: the next step is the first after a resume.

        Raises:
            StateError: With `strict` only: the state is damaged, or of a newer version. Otherwise
                that is logged, and the record on disk, if any, is gone on from.
        """
        if self._run is None or self._this_rank.inert or not state_dict:
            return
        with self._critical:
            try:
                self._run.load_state_dict(state_dict)
            except StateError as error:
                self._count_refusal("value")
                self._complaints.warn("state", "state_dict not loaded", error)
                if self.settings.strict:
                    raise

    def report(self) -> dict[str, Any]:
        """The receipt so far, as strict JSON; on ranks other than 0, what the rank knows of itself.

        It is described by `report.schema.json` in the package.
        """
        with self._critical:
            return self._this_rank.report()

    def rank_view(self) -> RankView:
        """What this rank knows of itself, for the exporters."""
        return self._this_rank.view()

    def snapshot(self) -> Snapshot:
        """All that one scrape exports."""
        return self._this_rank.snapshot()

    def page_view(self) -> PageView:
        """What the page for people shows."""
        return self._this_rank.page_view()

    def close(self, status: str = "finished") -> None:
        """End the run: write the receipt, say goodbye, wait for a last scrape, stop serving.

        Called by leaving the `with` block; calling it again does nothing.

        Args:
            status: `finished`, `terminated`, `interrupted` or `failed`.

        Raises:
            ValueError: With `strict` only: `status` is none of these. Otherwise that is logged, and
                the run has `finished`.
        """
        if status not in TERMINAL_STATES:
            known = ", ".join(TERMINAL_STATES)
            error = ValueError(f"status must be one of {known}, got {status!r}")
            if self.settings.strict:
                raise error
            self._complaints.warn("close", "the run counts as finished", error)
            status = "finished"
        self.finish(status, None)

    def finish(self, status: str, error: BaseException | None) -> None:
        """`close`, with the exception that ended the run."""
        self._end.finish(status, error)

    def hurry(self) -> None:
        """Wait neither for a last scrape nor for a last push."""
        self._end.hurry()

    def __enter__(self) -> HealthExporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if ENDING.terminated:
            status = "terminated"
        elif isinstance(error, KeyboardInterrupt):
            status = "interrupted"
        elif error is None or (isinstance(error, SystemExit) and not error.code):
            status = "finished"
        else:
            status = "failed"
        self.finish(status, None if status == "finished" else error)
