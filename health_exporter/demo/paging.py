"""The demo with servers around it: each page as the person on call would get it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from health_exporter.demo.launch import Launcher
from health_exporter.demo.pager import Pager, PagerEvent
from health_exporter.demo.settings import DemoSettings
from health_exporter.demo.stack import Stack

_FASTER = 3.0
"""Scrapes every 5 s and all other times in proportion: a page is there within half a minute."""

_PAGE_S = 75.0
"""A page that has not come by then, after the end of the job, does not come."""

_QUIET_FAULTS = frozenset({"none", "resume", "loss-spike"})
"""Nobody has to get up for these."""


class Paging:
    """Shows pages, and knows when the fault happened.

    Args:
        console: Where to print.
        run: Name of the run.
    """

    def __init__(self, console: Console, run: str) -> None:
        self.pager = Pager(self._show)
        self._console = console
        self._run = run
        self._fault_time: float | None = None
        self._ports: dict[int, int] = {}
        self._stack: Stack | None = None
        self._paged = threading.Event()

    def attach(self, stack: Stack) -> None:
        """From now on `stack` is told of the ranks."""
        self._stack = stack

    def listen(self, event: Mapping[str, Any]) -> None:
        """Take in what a rank tells the launcher."""
        if event["event"] == "fault":
            self._fault_time = time.time()
        elif event["event"] == "serving" and event["port"] is not None and self._stack is not None:
            self._ports[event["rank"]] = event["port"]
            self._stack.set_targets(f"127.0.0.1:{port}" for port in self._ports.values())

    def wait(self) -> bool:
        """Wait for the page of a fault that has happened.

        Returns:
            Whether there has been a page.
        """
        if self._fault_time is None or self._paged.is_set():
            return self._paged.is_set()
        self._say("waiting for the page")
        return self._paged.wait(_PAGE_S)

    def _show(self, event: PagerEvent) -> None:
        details = event.body.get("payload", {}).get("custom_details", {})
        if event.action == "resolve":
            self._say(f"RESOLVED  {details.get('alert', '')}")
            return
        fault_time = self._fault_time
        after = "" if fault_time is None else f", {event.time - fault_time:.1f} s after the fault"
        self._say(f"PAGE{after}")
        self._say(f"  {event.summary}")
        for name in ("alert", "dashboard", "runbook"):
            self._say(f"  {name:<10}{details.get(name, '')}")
        self._paged.set()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def run_with_stack(settings: DemoSettings, console: Console) -> int:
    """The demo with Prometheus, Alertmanager and a stand-in for PagerDuty.

    Returns:
        As of `Launcher.run`; 1 also when a fault that should page has not, or a page was refused.

    Raises:
        StackError: A server is not on PATH, or does not start.
        OSError: The output folder cannot be written.
    """
    paging = Paging(console, settings.run)
    with (
        tempfile.TemporaryDirectory(prefix="health-exporter-") as folder,
        Stack(Path(folder), faster=_FASTER, pager=paging.pager) as stack,
    ):
        paging.attach(stack)
        console.print(f"Prometheus at {stack.prometheus_url}", highlight=False)
        status = Launcher(settings, console, listen=paging.listen).run()
        expected = settings.fault not in _QUIET_FAULTS
        if status < 128 and expected and not paging.wait():
            console.print("NO PAGE has come", highlight=False)
            status = 1
    for problems in paging.pager.refused:
        console.print(f"REFUSED by PagerDuty's rules: {'; '.join(problems)}", markup=False)
        status = 1
    return status
