"""Runs that only push, the shipped rules, and what becomes a page: as in test_pages.py."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from health_exporter.demo.stack import Server, Stack
from tests.stack.otlp_backend import RECEIVER, REMOTE_WRITE, find, vmagent
from tests.stack.trainer_script import Script, StartScript, poll

FASTER = 7.5
INTERVAL_MS = 2000  # 15 s, by as much faster

# Trains until it is told: by "hang" to stand still, by anything else to finish.
TRAINER = """
import select
with make(
    run={run!r}, rank={rank}, world_size=2, port=None, heartbeat_timeout_s=3.0,
    startup_timeout_s=20.0,
) as exporter:
    for step in range({first_step}, 1_000_000):
        if select.select([sys.stdin], [], [], 0.1)[0]:
            break
        exporter.observe_step(step, 2.0 + step % 7 / 50, grad_norm=1.0)
    if sys.stdin.readline() == "hang\\n":
        time.sleep(3600)
"""


class PushedStack(Stack):
    """With a Prometheus that takes pushes, or remote writes, instead of scraping."""

    def __init__(self, folder: Path, program: str, flag: str) -> None:
        super().__init__(folder, faster=FASTER)
        self._command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        self._command += ["--web.listen-address=127.0.0.1:0", flag]

    def start_prometheus(self) -> None:
        self._prometheus = Server(self._command, self.folder, "prometheus")
        self.prometheus_url = self._prometheus.url


Pushed = tuple[Stack, str]
"""And what is pushed to."""


@pytest.fixture(params=[RECEIVER, REMOTE_WRITE])
def pushed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pushed]:
    folder = tmp_path / "stack"
    folder.mkdir()
    with ExitStack() as exits:
        program = find("prometheus", request.param)
        stack = exits.enter_context(PushedStack(folder, program, request.param))
        if request.param == RECEIVER:
            yield stack, f"{stack.prometheus_url}/api/v1/otlp"
        else:
            yield stack, exits.enter_context(vmagent(folder, stack.prometheus_url))


def tell(script: Script, order: str) -> None:
    assert script.process.stdin is not None
    script.process.stdin.write(f"{order}\n")
    script.process.stdin.flush()


@pytest.mark.timeout(180)
def test_pushed_runs_page_as_scraped_ones_do(pushed: Pushed, start: StartScript, tmp_path: Path):
    stack, endpoint = pushed

    def begin(run: str, rank: int, first_step: int = 0) -> Script:
        return start(
            TRAINER.format(run=run, rank=rank, first_step=first_step),
            folder=tmp_path / "receipts",
            environ={
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_METRIC_EXPORT_INTERVAL": str(INTERVAL_MS),
            },
        )

    names = ("killed", "hung", "finished", "resumed")
    runs = {name: [begin(name, rank) for rank in (0, 1)] for name in names}
    poll(lambda: bool(stack.query("count(training_health_rank_step > 3) == 8")))
    assert stack.query("up") == []

    runs["killed"][1].process.kill()
    tell(runs["hung"][1], "hang")
    for one in runs["finished"]:
        tell(one, "finish")
    for one in runs["resumed"]:
        one.process.send_signal(signal.SIGTERM)
    # It waits for the other, which has come less far: by more than two seconds of steps, since what
    # that has pushed may be so old.
    progress = 'training_health_rank_progress_total{{run="hung", rank="{}"}}'
    poll(lambda: bool(stack.query(f"{progress.format(0)} > on () {progress.format(1)} + 25")))
    tell(runs["hung"][0], "hang")
    for one in runs["resumed"]:
        one.process.wait()
    for rank in (0, 1):
        begin("resumed", rank, first_step=10_000)
    over = time.monotonic()

    host = re.escape(socket.gethostname())
    dead = rf"1 rank of run killed \(of 2\) dead: rank 1 on {host} \(last step \d+\)\."
    assert re.match(dead, the_page(stack, "killed"))
    stuck = the_page(stack, "hung")
    assert "Run hung waits for rank 1 on " in stuck
    assert "rank 0" not in stuck

    # Nothing ends the series of who pushes no more, whether it said goodbye or not.
    states = 'training_health_rank_state{run=~"killed|finished"} == 1'
    shown = {(one["run"], one["rank"]): one["state"] for one, _ in stack.query(states)}
    assert {state for (run, _), state in shown.items() if run == "finished"} == {"finished"}
    assert shown["killed", "1"] == "running"

    begin("killed", 1, first_step=1)
    poll(lambda: not stack.pager.open_pages("killed"))
    # As long as it takes to page for the others, and more.
    poll(lambda: time.monotonic() > over + 25.0)
    fired = 'last_over_time(ALERTS{alertstate="firing", run=~"finished|resumed"}[5m])'
    assert stack.query(fired) == []
    assert len(stack.pager.pages("killed")) == 1


def the_page(stack: Stack, run: str) -> str:
    poll(lambda: bool(stack.pager.pages(run)))
    [page] = stack.pager.pages(run)
    return page.summary
