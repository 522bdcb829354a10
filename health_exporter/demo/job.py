"""One torchrun and everything that it starts: begun, listened to, and surely ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from health_exporter.demo.event import parse
from health_exporter.demo.settings import DemoSettings

# A rank writes its receipt in well under a second; the rest is for a machine that is busy. It is
# below the 30 s after which torchrun itself would use force.
_GRACE_S = 20.0

# How long the last lines may take to arrive once torchrun has gone.
_DRAIN_S = 5.0


class Job:
    """A running torchrun.

    Args:
        settings: Of the run.
        settings_path: File that holds them.
        attempt: 0, or 1 after a resume.
        log_path: Takes what torchrun and the ranks print besides events; appended to.
        environ: Environment to start from.
    """

    def __init__(
        self,
        settings: DemoSettings,
        settings_path: Path,
        *,
        attempt: int,
        log_path: Path,
        environ: Mapping[str, str],
    ) -> None:
        self._linger_s = settings.linger_s
        self._pids: dict[int, int] = {}
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                _command(settings, settings_path, attempt),
                # Held open for as long as this process lives: see the trainer's lifeline.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(settings, environ),
                # A Ctrl-C in the terminal is for the launcher, which passes it on in order.
                start_new_session=True,
            )
        self._reader = threading.Thread(
            target=self._read, args=(log_path,), name="demo-output", daemon=True
        )
        self._reader.start()

    def next_event(self, until: float | None = None) -> dict[str, Any] | None:
        """What a rank says next; None at the end of the job.

        Args:
            until: Moment (`time.monotonic`) at which to stop waiting; None for never.

        Raises:
            TimeoutError: Nothing was said until then.
        """
        while True:
            wait = None if until is None else max(0.0, until - time.monotonic())
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                raise TimeoutError from None
            if event is not None and event["event"] == "started":
                self._pids[event["rank"]] = event["pid"]
                continue
            return event

    def wait(self) -> int:
        """Exit status of torchrun, which ends soon after its output has."""
        return self._process.wait()

    def end(self, signal_number: signal.Signals, stopped_pid: int | None = None) -> None:
        """End the job in bounded time, in order if possible.

        Args:
            signal_number: What the ranks are told with, through torchrun.
            stopped_pid: A rank that cannot hear it, since it is stopped.
        """
        if stopped_pid is not None:
            _kill(stopped_pid)
        self._process.send_signal(signal_number)
        try:
            self._process.wait(_GRACE_S + self._linger_s)
        except subprocess.TimeoutExpired:
            self._kill_all()

    def close(self) -> None:
        """Leave nothing behind: whatever is still there is killed."""
        self._kill_all()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(_DRAIN_S)

    def _kill_all(self) -> None:
        if self._process.poll() is not None:
            return  # it has seen its ranks end; their numbers may be others' by now
        for pid in self._pids.values():
            _kill(pid)
        self._process.kill()
        self._process.wait()

    def _read(self, log_path: Path) -> None:
        output = self._process.stdout
        assert output is not None
        with output, log_path.open("a", encoding="utf-8") as log:
            for raw in output:
                line = raw.decode(errors="replace")
                event = parse(line)
                if event is None:
                    log.write(line)
                    log.flush()
                else:
                    self._events.put(event)
        self._events.put(None)


def _command(settings: DemoSettings, settings_path: Path, attempt: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        # The machine's own name need not resolve.
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={settings.ranks}",
        "--max-restarts=0",
        "-m",
        "health_exporter.demo.trainer",
        str(settings_path),
        str(attempt),
    ]


def _environment(settings: DemoSettings, environ: Mapping[str, str]) -> dict[str, str]:
    env = dict(environ)
    # The ranks share the cores; more threads than cores would wait for each other.
    env["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // settings.ranks))
    if sys.platform == "linux":
        # All ranks are here, whatever the name service says.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # A package that is run from its source tree must be found by the ranks too.
    root = str(Path(__file__).parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    return env


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
