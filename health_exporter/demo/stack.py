"""Prometheus and Alertmanager with the shipped rules, and a stand-in for PagerDuty.

All of it on free loopback ports, in one folder, and gone at the end of `with`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from health_exporter import asset
from health_exporter.demo.pager import ROUTING_KEY, Pager
from health_exporter.errors import HealthExporterError

_POLL_S = 0.05
_START_S = 30.0
"""A start takes well under a second; the rest is for a machine busy with something else."""
_STOP_S = 20.0
"""Prometheus writes its data out when it is told to stop."""

_RESEND_S = 180.0
"""As prometheus.yml says how to start Prometheus; at the usual pace, as the next one."""
_LOOKBACK_S = 300.0
"""Prometheus' own, so that an outage of a minute is to a quick server what many are to another."""

STACK_LINGER_S = 10.0
"""How long a rank's endpoint stays at the end: two scrapes at three times the usual pace, so that
its last word is heard."""

PROGRAMS = {
    "prometheus": ("prometheus",),
    # Debian's name, and its makers'.
    "prometheus-alertmanager": ("prometheus-alertmanager", "alertmanager"),
}
"""Debian's package to the names under which its server may be on PATH."""


class StackError(HealthExporterError):
    """A server is not installed, or does not start."""


def find_programs() -> dict[str, str]:
    """Package to path of its server.

    Raises:
        StackError: Some are not on PATH; it says which packages bring them.
    """
    found = {
        package: path
        for package, names in PROGRAMS.items()
        if (path := next(filter(None, map(shutil.which, names)), None))
    }
    missing = [package for package in PROGRAMS if package not in found]
    if missing:
        raise StackError(
            f"not on PATH: {', '.join(missing)}; on Debian and Ubuntu: "
            f"apt-get install {' '.join(missing)}"
        )
    return found


class Server:
    """One server process, stopped by its own process id.

    Args:
        command: With `--web.listen-address=127.0.0.1:0` among it: the log tells the port.
        folder: For its log.
        name: Of the log.

    Raises:
        StackError: It does not start; with the end of its log.
    """

    def __init__(self, command: Sequence[str], folder: Path, name: str) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the trainer
            )
        try:
            self.url = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """`host:port`."""
        return self.url.removeprefix("http://")

    def stop(self) -> None:
        """End it; a second call does nothing."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            text = self.log_path.read_text(errors="replace")
            # Prometheus 2 and Alertmanager log `address=`, Prometheus 3 quotes it.
            listening = re.search(r'msg="Listening on" .*?address="?(127\.0\.0\.1:\d+)', text)
            if listening is not None and _is_ready(url := f"http://{listening[1]}"):
                return url
            time.sleep(_POLL_S)
        raise StackError(f"{self.name} did not start:\n{self.log_path.read_text()[-2000:]}")


class Stack:
    """The servers, with the shipped configuration at a quicker pace.

    Args:
        folder: For all files; must exist.
        faster: What the times that belong to the pace of scraping are divided by.
        changes: Other values of the rules, as of values.yaml.
        pager: Stand-in for PagerDuty; it is entered and left here.
    """

    def __init__(
        self,
        folder: Path,
        *,
        faster: float = 3.0,
        changes: Mapping[str, str] | None = None,
        pager: Pager | None = None,
    ) -> None:
        self.folder = folder
        self.pager = Pager() if pager is None else pager
        self._faster = faster
        self._changes = dict(changes or {})
        self._exit = ExitStack()
        self._programs = find_programs()
        self.prometheus_url = ""

    def __enter__(self) -> Stack:
        with ExitStack() as servers:
            servers.enter_context(self.pager)
            self._render()
            alertmanager = Server(
                [
                    self._programs["prometheus-alertmanager"],
                    "--config.file=alertmanager.yml",
                    "--storage.path=alertmanager-data",
                    "--web.listen-address=127.0.0.1:0",
                    "--cluster.listen-address=",
                ],
                self.folder,
                "alertmanager",
            )
            servers.callback(alertmanager.stop)
            self._configure_prometheus(alertmanager.address)
            self.start_prometheus()
            servers.callback(self.stop_prometheus)
            self._exit = servers.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()

    def start_prometheus(self) -> None:
        """Start it, at first or again."""
        self._prometheus = Server(
            [
                self._programs["prometheus"],
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=prometheus-data",
                "--web.listen-address=127.0.0.1:0",
                f"--rules.alert.resend-delay={self._at_pace(_RESEND_S)}",
                f"--query.lookback-delta={self._at_pace(_LOOKBACK_S)}",
            ],
            self.folder,
            "prometheus",
        )
        self.prometheus_url = self._prometheus.url

    def stop_prometheus(self) -> None:
        """Stop it; what it knows stays on disk."""
        self._prometheus.stop()

    def set_targets(self, addresses: Iterable[str], *, name: str = "ranks") -> None:
        """What is scraped from now on, as file-based discovery; replaces what had this name."""
        targets = self.folder / "targets"
        temporary = targets / f"{name}.new"
        temporary.write_text(json.dumps([{"targets": list(addresses), "labels": {}}]))
        temporary.replace(targets / f"{name}.json")

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """The instant vector of `promql` now."""
        query = urllib.parse.urlencode({"query": promql})
        url = f"{self.prometheus_url}/api/v1/query?{query}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            result = json.load(answer)["data"]["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def _at_pace(self, seconds: float) -> str:
        return f"{round(1000 * seconds / self._faster)}ms"

    def _render(self) -> None:
        key_path = self.folder / "pagerduty-routing-key"
        key_path.touch(mode=0o600)
        key_path.write_text(ROUTING_KEY)
        (self.folder / "targets").mkdir(exist_ok=True)
        values = {
            "routing_key_file": str(key_path),
            "pagerduty_url": self.pager.url("/v2/enqueue"),
            "ticket_url": self.pager.url("/ticket"),
            "watchdog_url": self.pager.url("/watchdog"),
            **self._changes,
        }
        command = [sys.executable, str(asset.folder("alerts") / "build.py")]
        command += ["--out", str(self.folder), "--faster", f"{self._faster:g}"]
        for name, value in values.items():
            command += ["--set", f"{name}={value}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise StackError(f"the rules cannot be rendered: {done.stderr}")

    def _configure_prometheus(self, alertmanager: str) -> None:
        """The shipped file, but for what no other machine has in common with this one."""
        path = self.folder / "prometheus.yml"
        config: dict[str, Any] = yaml.safe_load(path.read_text())
        config["scrape_configs"] = [
            job for job in config["scrape_configs"] if "file_sd_configs" in job
        ]
        config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
        path.write_text(yaml.safe_dump(config, sort_keys=False))


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False  # 503 while it loads
