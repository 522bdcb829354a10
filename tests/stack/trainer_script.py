"""A trainer's script in a process of its own, with the exporter or, to compare, without it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 40.0

# What every script below begins with. `tell` prints a line that the test waits for.
PREAMBLE = """
import asyncio, contextlib, ctypes, multiprocessing, os, signal, socket, sys, threading, time

def tell(*words):
    print(*words, flush=True)

if sys.argv[1] == "plain":
    class HealthExporter:  # stands for no exporter at all
        url = port = None
        def __init__(self, *args, **settings): pass
        def __enter__(self): return self
        def __exit__(self, *error): pass
        def observe_step(self, *args, **more): return []
        def close(self, *args): pass
else:
    from health_exporter import HealthExporter

def make(**settings):
    settings = {"run": "r", "port": 0, "address": "127.0.0.1", "linger_s": 0, **settings}
    exporter = HealthExporter(receipt_dir=sys.argv[2], **settings)
    tell("port", exporter.port)
    return exporter
"""


class Script:
    """Runs `body` behind the preamble; its lines are read as they come."""

    def __init__(
        self,
        body: str,
        folder: Path,
        *,
        plain: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [
                sys.executable,
                # Python 3.12 and later warn of any fork while threads run.
                *("-W", "ignore::DeprecationWarning"),
                *("-c", PREAMBLE + body),
                "plain" if plain else "real",
                str(folder),
            ],
            cwd=REPOSITORY,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what it forks ends with it
        )
        port = self.wait_for("port")
        self.port = None if port == "None" else int(port)

    def wait_for(self, word: str) -> str:
        """Read lines up to the one that begins with `word`; its rest."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest
        raise AssertionError(f"it ended without {word!r}: {self.process.communicate()[1]}")

    def go_on(self) -> None:
        """It waits for a line of its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, timeout_s: float = DEADLINE_S) -> tuple[int, str]:
        """Return code (minus the signal's number where one killed it), standard error."""
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors

    def dispose(self) -> None:
        """End it and all that it has forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    @property
    def record(self) -> Path:
        """The folder of the run's receipts."""
        return self.folder / "r"

    def report(self) -> dict[str, Any]:
        """`report.json` as it is."""
        text = (self.record / "report.json").read_text()
        report: dict[str, Any] = json.loads(text, parse_constant=_refuse)
        return report

    def events(self) -> list[dict[str, Any]]:
        """`events.jsonl`, of which every line must be whole."""
        text = (self.record / "events.jsonl").read_text()
        assert text.endswith("\n")
        return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]

    def wait_for_status(self, status: str) -> None:
        """Until `report.json` says so."""

        def has_status() -> bool:
            try:
                return bool(self.report()["status"] == status)
            except FileNotFoundError:
                return False

        poll(has_status)


StartScript = Callable[..., Script]
"""Starts a `Script` with its arguments but the folder; it ends with the test."""


def poll(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Return as soon as `condition` holds; AssertionError after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.01)


def _refuse(constant: str) -> float:
    raise AssertionError(f"not strict JSON: {constant}")
