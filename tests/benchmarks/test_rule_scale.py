"""What one evaluation of the rules costs a Prometheus that scrapes 16,384 ranks."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack.prometheus_server import PrometheusServer

BUILD = Path(__file__).resolve().parents[2] / "alerts" / "build.py"
N_RANKS = 16_384
N_RANKS_QUICK = 1024
RANKS_PER_HOST = 8
PAGES = 16
FASTER = 3
"""Scrapes every 5 s and look-backs in proportion: as many samples to pass as at 15 s, in a third
of the time to gather them."""
INTERVAL_S = 15 / FASTER
SEEN_RANGE_S = 300 / FASTER
N_ROUNDS = 12
LIMIT_S = 1.0
"""Of an evaluation of all groups, by the wall."""
RUN_STATES = ("starting", "running", "finished", "terminated", "interrupted", "failed")


def page(ranks: range, n_ranks: int) -> bytes:
    """What these ranks expose, on one page. Their heartbeats are of the future: none is stuck."""
    heartbeat = time.time() + 3600

    def lines() -> Iterator[str]:
        for rank in ranks:
            own = f'run="big",rank="{rank}"'
            host = f'host="gpu{rank // RANKS_PER_HOST:05}",local_rank="{rank % RANKS_PER_HOST}"'
            yield f"training_health_rank_info{{{own},{host}}} 1"
            for state in RUN_STATES:
                value = int(state == "running")
                yield f'training_health_rank_state{{{own},state="{state}"}} {value}'
            yield f"training_health_rank_heartbeat_timestamp_seconds{{{own}}} {heartbeat}"
            yield f"training_health_rank_step{{{own}}} 41302"
            yield f"training_health_rank_progress_total{{{own}}} 413020"
            yield f"training_health_rank_timeout_seconds{{{own}}} 30"
            yield f"training_health_rank_store_connected{{{own}}} 1"
        if 0 in ranks:
            run = 'run="big"'
            start = heartbeat - 7200
            yield f"training_health_run_start_timestamp_seconds{{{run}}} {start}"
            yield f"training_health_world_size{{{run}}} {n_ranks}"
            for state in RUN_STATES:
                value = int(state == "running")
                yield f'training_health_run_state{{{run},state="{state}"}} {value}'
            for status in ("alive", "stuck", "dead", "finished", "missing"):
                value = n_ranks if status == "alive" else 0
                yield f'training_health_ranks{{{run},status="{status}"}} {value}'

    return "\n".join(lines()).encode() + b"\n"


@pytest.fixture
def address(quick: bool) -> Iterator[str]:
    """A server of the pages, at /0 to /15."""
    n_ranks = N_RANKS_QUICK if quick else N_RANKS
    size = n_ranks // PAGES
    pages = [page(range(i * size, (i + 1) * size), n_ranks) for i in range(PAGES)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[int(self.path[1:])]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def cpu_s(prometheus: PrometheusServer) -> float:
    """Processor time that the server has taken so far, in seconds."""
    with urllib.request.urlopen(f"{prometheus.url}/metrics", timeout=10) as answer:
        found = re.search(r"^process_cpu_seconds_total (\S+)", answer.read().decode(), re.M)
    assert found is not None
    return float(found[1])


def evaluation_times(prometheus: PrometheusServer, n_rounds: int) -> list[dict[str, float]]:
    """Of so many rounds, group to how long its evaluation took, in seconds."""
    rounds: list[dict[str, float]] = []
    last = ""
    while len(rounds) < n_rounds:
        groups = prometheus.get("/api/v1/rules")["groups"]
        if (newest := groups[0]["lastEvaluation"]) != last:
            last = newest
            rounds.append({group["name"]: group["evaluationTime"] for group in groups})
        time.sleep(INTERVAL_S / 10)
    return rounds


def without_rules(prometheus: PrometheusServer, config: dict[str, Any]) -> None:
    """Let it scrape on and evaluate nothing."""
    path = prometheus.folder / "prometheus.yml"
    path.write_text(yaml.safe_dump({k: v for k, v in config.items() if k != "rule_files"}))
    reload = urllib.request.Request(f"{prometheus.url}/-/reload", method="POST")
    urllib.request.urlopen(reload, timeout=60).close()


@pytest.mark.timeout(600)
def test_rules_of_many_ranks(address: str, tmp_path: Path, quick: bool) -> None:
    """All groups one after the other, the processor time with and without rules beside it."""
    subprocess.run(
        [sys.executable, BUILD, "--out", tmp_path, "--faster", str(FASTER)], check=True, timeout=60
    )
    pace = f"{INTERVAL_S:g}s"
    config = {
        "global": {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace},
        "rule_files": [str(tmp_path / "rules" / "*.yml")],
        "scrape_configs": [
            {
                "job_name": f"page-{i}",
                "metrics_path": f"/{i}",
                "static_configs": [{"targets": [address]}],
            }
            for i in range(PAGES)
        ],
    }
    with PrometheusServer(tmp_path / "prometheus", config=config) as prometheus:
        present = f"run:training_health_present:count == {N_RANKS_QUICK if quick else N_RANKS}"
        prometheus.wait_until(present, 60)
        if quick:
            assert evaluation_times(prometheus, 1)
            return
        time.sleep(SEEN_RANGE_S)  # the longest look-back is then as full as it gets

        before, began = cpu_s(prometheus), time.monotonic()
        rounds = evaluation_times(prometheus, N_ROUNDS)
        took_s = time.monotonic() - began
        with_rules = (cpu_s(prometheus) - before) / took_s
        without_rules(prometheus, config)
        before, began = cpu_s(prometheus), time.monotonic()
        time.sleep(took_s)
        scraping = (cpu_s(prometheus) - before) / (time.monotonic() - began)

    whole = [sum(groups.values()) for groups in rounds]
    print(
        f"\nrules of {N_RANKS:,} ranks: an evaluation takes {statistics.median(whole):.2f} s "
        f"(least {min(whole):.2f} s, most {max(whole):.2f} s) and "
        f"{(with_rules - scraping) * INTERVAL_S:.2f} s of processor time, with a scrape "
        f"{with_rules * INTERVAL_S:.2f} s; 1-minute load {os.getloadavg()[0]:.1f}"
    )
    for group in rounds[0]:
        print(f"  {group}: {statistics.median(groups[group] for groups in rounds):.3f} s")
    assert statistics.median(whole) < LIMIT_S
