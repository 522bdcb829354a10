"""Small training processes for the tests of paging, each a process of its own with the exporter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from health_exporter.demo.stack import Stack

REPOSITORY = Path(__file__).resolve().parents[2]

# Trains by itself, a step every 0.1 s, and does what it is told on its standard input.
SCRIPT = """
import contextlib, json, math, os, random, select, sys, time
settings, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
if options.get("store"):
    import torch.distributed  # the exporter finds the job's store through it
from health_exporter import HealthExporter

pending = b""  # of our own: select sees nothing of what a text stream has read ahead

def told(timeout_s):
    global pending
    if b"\\n" not in pending and select.select([0], [], [], timeout_s)[0]:
        pending += os.read(0, 65536) or b'["exit"]\\n'
    if b"\\n" not in pending:
        return None
    order, _, pending = pending.partition(b"\\n")
    return json.loads(order)

noise = random.Random(1)
with HealthExporter(**settings) as exporter:
    print(exporter.port, flush=True)
    step, loss = options.get("first_step", 0), 2.0
    while True:
        order = told(0.1)
        if order is None:
            if options.get("idle"):
                continue
            exporter.observe_step(step, loss + 0.02 * noise.random(), grad_norm=1.0)
            step += 1
        elif order[0] == "observe":
            exporter.observe_step(step, float(order[1]), grad_norm=float(order[2]))
            step += 1
        elif order[0] == "loss":
            loss = order[1]
        elif order[0] == "step":
            step = order[1]
        elif order[0] == "type":
            exporter.observe_step(step, "two")
        elif order[0] == "hang":
            time.sleep(3600)
        elif order[0] == "hold":
            # As a native call that holds the interpreter's lock.
            import ctypes
            ctypes.PyDLL(None).usleep(int(order[1] * 1e6))
        elif order[0] == "phase":
            with exporter.phase(order[1]):
                time.sleep(order[2])
        elif order[0] == "train":
            options["idle"] = False
        elif order[0] == "raise":
            raise FloatingPointError("told to")
        else:
            break
"""

_DEADLINE_S = 60.0


class Rank:
    """One rank's process; see `SCRIPT` for what it can be told."""

    def __init__(
        self, settings: Mapping[str, Any], environ: Mapping[str, str], **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(dict(settings)), json.dumps(options)],
            cwd=REPOSITORY,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.number = int(settings["rank"])
        self.address = f"127.0.0.1:{int(self.process.stdout.readline())}"

    def tell(self, *order: object) -> None:
        """Give it an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def dispose(self) -> None:
        """End it, whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class PagedRun:
    """The ranks of one run.

    Args:
        run: Name.
        folder: For receipts.
        set_targets: Called with all addresses whenever a rank has started.
        settings: Of the exporters.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        set_targets: Callable[[list[str]], None],
        *,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.run = run
        self.ranks: list[Rank] = []
        self.addresses: list[str] = []
        self._set_targets = set_targets
        self._environ = dict(environ or {})
        self._settings = {
            "run": run,
            "port": 0,
            "address": "127.0.0.1",
            "receipt_dir": str(folder),
            "linger_s": 20,
            "startup_timeout_s": 20.0,
            **settings,
        }

    def start(self, rank: int, world_size: int, *, host: str = "", **options: Any) -> Rank:
        """Start a rank, and scrape it from now on."""
        settings = {**self._settings, "rank": rank, "local_rank": 0, "world_size": world_size}
        settings |= options.pop("settings", {})
        started = Rank(settings, self._environ, **options)
        self.ranks.append(started)
        self.addresses.append(started.address)
        self._set_targets(self.addresses)
        return started

    def forget(self, *ranks: Rank) -> None:
        """Their targets are gone from the discovery."""
        for rank in ranks:
            self.addresses.remove(rank.address)
        self._set_targets(self.addresses)

    def dispose(self) -> None:
        """End all of them."""
        for rank in self.ranks:
            rank.dispose()


class PlayedRanks:
    """Endpoints of many ranks that only play to train, on one host; for what no machine can run."""

    def __init__(self, run: str, ranks: range, world_size: int, host: str) -> None:
        self._run, self._ranks, self._world_size, self._host = run, ranks, world_size, host
        self._start = time.time()
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = "\n".join(played._lines()).encode() + b"\n"
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def die(self) -> None:
        """They are gone; a second time does nothing."""
        self._server.shutdown()
        self._server.server_close()

    def _lines(self) -> Iterator[str]:
        now = time.time()
        for rank in self._ranks:
            own = f'run="{self._run}",rank="{rank}"'
            yield f'training_health_rank_info{{{own},host="{self._host}",local_rank="0"}} 1'
            yield f'training_health_rank_state{{{own},state="running"}} 1'
            yield f"training_health_rank_heartbeat_timestamp_seconds{{{own}}} {now}"
            yield f"training_health_rank_step{{{own}}} {int(now - self._start)}"
            yield f"training_health_rank_timeout_seconds{{{own}}} 30"
        if 0 in self._ranks:
            yield f'training_health_run_start_timestamp_seconds{{run="{self._run}"}} {self._start}'
            yield f'training_health_world_size{{run="{self._run}"}} {self._world_size}'
            yield f'training_health_run_state{{run="{self._run}",state="running"}} 1'


@contextlib.contextmanager
def job_store() -> Iterator[dict[str, str]]:
    """A store as a launcher has it: the environment in which the ranks find it."""
    script = (
        "import sys, torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, is_master=True,"
        " wait_for_workers=False); print(s.port, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        finally:
            process.kill()


def poll(condition: Callable[[], Any], deadline_s: float = _DEADLINE_S) -> Any:
    """What `condition` returns as soon as that is true; AssertionError after the deadline."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.05)
    return value


def trained(stack: Stack, run: PagedRun, n_ranks: int) -> None:
    """Wait until that many ranks have been seen to train."""
    query = f'count(training_health_rank_step{{run="{run.run}"}} > 3) >= {n_ranks}'
    poll(lambda: stack.query(query))


def only_page(stack: Stack, run: PagedRun) -> str:
    """Wait for a page; its text. AssertionError if there are several."""
    poll(lambda: stack.pager.pages(run.run))
    [page] = stack.pager.pages(run.run)
    payload = page.body["payload"]
    assert (payload["severity"], payload["source"]) == ("critical", run.run)
    assert page.body["payload"]["custom_details"]["run"] == run.run
    return page.summary


def one_dead(stack: Stack, run: PagedRun, victim: int) -> str:
    """A pattern for the page of one dead rank of two, which are on one host."""
    query = f'training_health_rank_info{{run="{run.run}",rank="{1 - victim}"}}'
    host = re.escape(stack.query(query)[0][0]["host"])
    begins = re.escape(f"1 rank of run {run.run} (of 2) dead: rank {victim} on ")
    return rf"{begins}{host} \(last step \d+\)\."


def resolved(stack: Stack, run: PagedRun) -> None:
    """Wait until nothing is open, of one page."""
    poll(lambda: not stack.pager.open_pages(run.run))
    assert len(stack.pager.pages(run.run)) == 1


def quiet_for(stack: Stack, seconds: float, *runs: PagedRun) -> None:
    """Nobody is paged for any of the runs for that long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert [page.summary for run in runs for page in stack.pager.pages(run.run)] == []
        time.sleep(0.2)
