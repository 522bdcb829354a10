"""A real Prometheus for a test, on a free loopback port, in the test's own folder."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import yaml

from health_exporter.demo.stack import Server

# How often a poll looks again: far below the scrape interval, and no load on a small machine.
POLL_S = 0.1

Sample = tuple[dict[str, str], float]


def require_tool(*names: str) -> str:
    """The path of the first of `names` on PATH; the test fails, never skips, without one."""
    for name in names:
        if path := shutil.which(name):
            return path
    pytest.fail(
        f"{' or '.join(names)} is not on PATH; `tests/run stack` installs it", pytrace=False
    )


class PrometheusServer:
    """Scrapes `targets` ("host:port"), or runs with a whole `config`; stops at the end of `with`.

    `config` is the content of prometheus.yml as a mapping. It overrides `targets` and
    `scrape_interval`, and relative file names in it are relative to `folder`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        targets: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        scrape_interval: str = "1s",
    ) -> None:
        self.folder = folder
        self.url = ""
        self._config = config or {
            "global": {"scrape_interval": scrape_interval, "scrape_timeout": scrape_interval},
            "scrape_configs": [
                {"job_name": "trainer", "static_configs": [{"targets": list(targets)}]}
            ],
        }
        self._server: Server | None = None

    def __enter__(self) -> PrometheusServer:
        binary = require_tool("prometheus")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(dict(self._config)))
        self._server = Server(
            [
                binary,
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                "--web.listen-address=127.0.0.1:0",
                "--web.enable-lifecycle",
            ],
            self.folder,
            "prometheus",
        )
        self.url = self._server.url
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends this server by its own process id; a second call does nothing."""
        if self._server is not None:
            self._server.stop()

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of one answer of the HTTP API, for example `get("/api/v1/targets")`."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with urllib.request.urlopen(f"{self.url}{path}{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, promql: str) -> list[Sample]:
        """The instant vector of `promql` now: (labels, value) of each series, no staleness added.

        A scalar is one sample without labels.
        """
        data = self.get("/api/v1/query", query=promql)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in data["result"]]

    def wait_until(self, promql: str, deadline_s: float = 30.0) -> list[Sample]:
        """Polls until `promql` has at least one sample, and returns them.

        Write the condition into the query (`up == 1`, `count(up == 1) == 2`). The test fails
        after `deadline_s` seconds with what the targets said.
        """
        end = time.monotonic() + deadline_s
        while not (samples := self.query(promql)):
            if time.monotonic() > end:
                pytest.fail(f"no {promql!r} within {deadline_s} s; targets: {self._targets()}")
            time.sleep(POLL_S)
        return samples

    def _targets(self) -> list[tuple[str, str, str]]:
        active = self.get("/api/v1/targets")["activeTargets"]
        return [(target["scrapeUrl"], target["health"], target["lastError"]) for target in active]
