"""Runs in every state, made of the real parts on a clock of the test, and the pages of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from xml.etree import ElementTree as ET

from health_exporter import ModelFlopConfig, TrainingHealthMonitor
from health_exporter.core.beat import Beat
from health_exporter.core.standing import Standing
from health_exporter.core.verdict import RankBoard
from health_exporter.export.journal import Journal
from health_exporter.export.page import status_page
from health_exporter.export.page_view import PageView
from health_exporter.runtime.judge import Judge
from health_exporter.snapshot import RankView, RunView, Snapshot

NOW = 1_700_000_000.0
CONFIG = ModelFlopConfig(
    n_params=124_337_664, n_layer=12, n_head=12, d_model=768, seq_len=1024
)  # GPT-2
BEAT_S = 5.0


class Scene:
    """One run as rank 0 sees it; `html()` is its page."""

    def __init__(self, world_size: int = 1, *, run: str = "llama-8b-v3", host: str = "") -> None:
        self.now = NOW
        self.world_size = world_size
        self.run = run
        self.host = host
        self.state = "starting"
        self.journal = Journal()
        monitor = TrainingHealthMonitor.production(flop_config=CONFIG, peak_flops_per_sec=989e12)
        self.judge = Judge(monitor, wall=lambda: self.now)
        self.started = self.now
        self.board = RankBoard(world_size, now=0.0)
        self.standing: Standing | None = None
        self.store_connected: bool | None = None if world_size == 1 else True
        self.still_s = 0.4
        self.stuck_s: float | None = None
        self.phase = "forward"
        self.rejected: dict[str, int] = {}
        self._draw = random.Random(7)
        self.event("start", attempt=0, host=self._host(0), previous_state=None)

    def _host(self, rank: int) -> str:
        return self.host or f"node-{rank // 8}"

    def event(self, event: str, **fields: object) -> None:
        self.journal.add(self.now, event, fields)

    def step(
        self,
        step: int,
        loss: float,
        grad_norm: float | None = None,
        *,
        step_time_s: float = 0.05,
        restart: bool = False,
    ) -> None:
        self.now += step_time_s
        self.state = "running"
        found, _ = self.judge.observe(
            step,
            loss,
            grad_norm=grad_norm,
            step_time_s=step_time_s,
            batch_size=8,
            restart=restart,
        )
        if restart:
            self.event("restart", step=step, lost_steps=0)
        for anomaly in found:
            self.event("anomaly", **anomaly.as_dict())

    def train(self, steps: Iterable[int], loss: Callable[[int], float] | None = None) -> Scene:
        """Healthy steps of a run that learns, unless `loss` says otherwise."""
        draw = self._draw
        for step in steps:
            usual = 2.0 + 8.0 / (1 + step / 60) + draw.gauss(0.0, 0.03)
            self.step(
                step,
                usual if loss is None else loss(step),
                0.9 + abs(draw.gauss(0.0, 0.15)),
                step_time_s=0.05 + 0.004 * draw.random(),
            )
        return self

    def beat(
        self,
        seconds: float = 30.0,
        *,
        silent: Iterable[int] = (),
        still: Iterable[int] = (),
        absent: Iterable[int] = (),
        where: str = "train.py:42 load_batch",
        **changes: object,
    ) -> Scene:
        """The ranks beat for so long; `silent` ones did once, `still` ones make no progress."""
        silent_set, still_set, absent_set = set(silent), set(still), set(absent)
        at = 0.0
        n = 1
        while at <= seconds:
            beats = [
                self._beat(rank, n, at if rank in still_set else 0.2, where, changes)
                for rank in range(self.world_size)
                if rank not in absent_set and (n == 1 or rank not in silent_set)
            ]
            self.board.observe(beats, at)
            self.standing = self.board.judge(at)
            for outage in self.standing.begun:
                self.event(
                    "anomaly",
                    kind=outage.kind,
                    step=max(0, outage.step),
                    value=1.0,
                    rank=None if outage.rank is None else str(outage.rank),
                    host=outage.host,
                    where=outage.where,
                )
            at += BEAT_S
            n += 1
            self.now += BEAT_S
        return self

    def _beat(
        self, rank: int, n: int, still_s: float, where: str, changes: dict[str, object]
    ) -> Beat:
        beat = Beat(
            rank=rank,
            host=self._host(rank),
            address=f"{self._host(rank)}:{19400 + rank % 8}",
            pid=1000 + rank,
            beats=n,
            progress=n,
            step=self.judge.view.step or 0,
            phase="backward",
            state="running",
            still_s=still_s,
            timeout_s=30.0,
            where=where if still_s > 1.0 else "",
        )
        return dataclasses.replace(beat, **changes) if changes else beat  # type: ignore[arg-type]

    def end(self, state: str, kind: str = "", message: str = "") -> Scene:
        """The run says goodbye, with an exception or without."""
        self.state = state
        fields = {"exception": {"type": kind, "message": message}} if kind else {}
        self.event("state", state=state, step=self.judge.view.step, **fields)
        return self

    def view(self) -> PageView:
        standing = self.standing
        suspects = () if standing is None else standing.suspects
        whole = RunView(
            info={"model": "llama-8b", "device": "NVIDIA H100 80GB HBM3"},
            state=self.state,
            start_time=self.started,
            world_size=self.world_size,
            peak_flops_per_second=989e12,
            last=self.judge.view,
            goodput=self.judge.goodput(),
            ranks={"alive": 1} if standing is None else standing.counts,
            suspects=suspects,
            rejected=self.rejected,
            receipt_failures=0,
            receipt_time=self.now,
            first_start_time=self.started,
        )
        return PageView(
            snapshot=Snapshot(self.run, 0, self.rank_view(), whole),
            now=self.now,
            world_size=self.world_size,
            phase=self.phase,
            still_s=self.still_s,
            stuck_s=self.stuck_s,
            standing=standing,
            history=self.judge.history,
            happenings=self.journal.entries,
        )

    def rank_view(self) -> RankView:
        return RankView(
            host=self._host(0),
            local_rank=0,
            state=self.state,
            heartbeat_time=self.now,
            step=self.judge.view.step,
            progress=1,
            phase_seconds={"forward": 3.0},
            timeout_s=30.0,
            store_connected=self.store_connected,
            exception=None,
        )

    def html(self) -> str:
        return status_page(self.view())


def parsed(html: str) -> ET.Element:
    """The document; an error if it is not well-formed."""
    doctype, _, rest = html.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ET.fromstring(rest)


def words(element: ET.Element | None) -> str:
    """Its text, white space made single."""
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def headline(html: str) -> str:
    """What the verdict says, without its sign."""
    return words(parsed(html).find(".//h2[@id='verdict']"))[2:]


def problems(html: str) -> list[str]:
    return [words(item) for item in parsed(html).findall(".//section[@class]/ul/li")]
