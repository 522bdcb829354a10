"""The rank that this process is: its parts, put together, and what others are shown of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.core.standing import Standing
from health_exporter.export import fork
from health_exporter.export.page_view import PageView
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.progress import Progress
from health_exporter.runtime.push import make_push
from health_exporter.runtime.run import Run
from health_exporter.runtime.server import Server
from health_exporter.runtime.settings import Settings
from health_exporter.runtime.target import Target, join_address, rank0_address
from health_exporter.runtime.watch import Watch
from health_exporter.snapshot import TERMINAL_STATES, RankView, Snapshot


class ThisRank:
    """The exporter without the trainer's side of it: what the server, the watch and the push show.

    Attributes:
        progress: What the training thread has done.
        run: The run; None on ranks other than 0.
        push: The pushes by OTLP; None where there are none.
        server: The endpoint.
        watch: The beats, and on rank 0 how the ranks stand.
        own_state: What this rank says of itself.
        error: The exception that ended it.
        inert: In a forked child, a data loader's worker say: there the exporter does nothing.

    Args:
        settings: Settings.
        identity: Who this process is.
        monitor: Judges the steps on rank 0.
        environ: Environment variables.

    Raises:
        SettingsError: Pushes are asked for and not possible.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        monitor: TrainingHealthMonitor,
        environ: Mapping[str, str],
    ) -> None:
        self.settings = settings
        self.identity = identity
        self._environ = environ
        self.progress = Progress(settings)
        self.own_state = "starting"
        self.error: BaseException | None = None
        self.inert = False
        self.run = Run(settings, identity, monitor) if identity.rank == 0 else None
        self.push = make_push(self, environ)
        # The first scrape must see the counters that an earlier process left, or they would seem
        # to start from nothing.
        if self.run is not None:
            self.run.take_over()
        self.server = Server(self)
        self.watch = Watch(self, self.progress, environ, on_standing=self._on_standing)

    def start(self) -> None:
        """Serve, write, beat and push.

        Raises:
            EndpointError: With `strict` only: the port is taken.
        """
        self.server.start()
        if self.run is not None:
            self.run.start()
        self.watch.start()
        if self.push is not None:
            if self.run is not None and self.push.events is not None:
                self.run.receipts.listener = self.push.events.add
            self.push.start()
        fork.watch(self)

    def hurry(self) -> None:
        """Wait neither for a last scrape nor for a last push."""
        self.server.hurry()
        if self.push is not None:
            self.push.hurry()

    def close(self) -> None:
        """Stop all that `start` began."""
        fork.unwatch(self)
        if self.push is not None:
            self.push.close()
        self.watch.close()
        self.server.close()
        if self.run is not None:
            self.run.receipts.close()

    def abandon_in_child(self) -> None:
        """In a forked child the rank is its parent's."""
        self.inert = True

    def _on_standing(self, standing: Standing) -> None:
        if self.run is not None:
            self.run.update_ranks(standing)

    @property
    def state(self) -> str:
        """One of `snapshot.RUN_STATES`; rank 0's is the run's."""
        return self.own_state if self.run is None else self.run.state

    @property
    def address(self) -> str:
        """`host:port` at which others reach this rank's endpoint; "" without one."""
        port = self.server.port
        if port is None:
            return ""
        listened = self.settings.address.strip("[]")
        host = self.identity.host if listened in ("", "::", "0.0.0.0") else listened
        return join_address(host, port)

    @property
    def standing(self) -> Standing | None:
        """How the ranks stand; None on ranks other than 0, and before the first judgement."""
        return self.watch.standing

    @property
    def registered(self) -> Sequence[Target]:
        """Targets that ranks have left on disk; none on ranks other than 0."""
        return self.watch.registered

    def scraped(self) -> None:
        """A scrape is about to be answered, or a push has arrived."""
        if self.run is not None:
            self.run.receipts.scraped()

    def stuck_for_s(self) -> float | None:
        """Seconds without progress where that is longer than allowed; else None."""
        still = self.progress.still_s
        is_stuck = self.own_state not in TERMINAL_STATES and still > self.progress.timeout_s
        return still if is_stuck else None

    def report(self) -> dict[str, Any]:
        """See `HealthExporter.report`."""
        if self.run is not None and not self.inert:
            return self.run.report()
        own = self.view()
        return {
            "run": self.settings.run,
            "rank": self.identity.rank,
            "status": own.state,
            "step": own.step,
        }

    def view(self) -> RankView:
        """What this rank knows of itself."""
        progress = self.progress
        mark = progress.mark
        return RankView(
            self.identity.host,
            self.identity.local_rank,
            self.own_state,
            mark.time,
            mark.step,
            mark.n,
            dict(progress.phase_seconds),
            progress.timeout_s,
            self.watch.connected,
            None if self.error is None else type(self.error).__name__,
            None if self.push is None else self.push.failures,
        )

    def snapshot(self) -> Snapshot:
        """All that one scrape exports."""
        whole = None if self.run is None else self.run.view()
        return Snapshot(self.settings.run, self.identity.rank, self.view(), whole)

    def page_view(self) -> PageView:
        """What the page for people shows."""
        progress, run = self.progress, self.run
        return PageView(
            snapshot=self.snapshot(),
            now=time.time(),
            world_size=self.identity.world_size,
            phase=progress.current_phase,
            still_s=progress.still_s,
            stuck_s=self.stuck_for_s(),
            rank0="" if self.identity.rank == 0 else rank0_address(self.settings, self._environ),
            standing=self.standing,
            history=None if run is None else run.judge.history,
            happenings=() if run is None else run.receipts.journal.entries,
        )
