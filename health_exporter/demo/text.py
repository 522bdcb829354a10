"""What the demo says, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from health_exporter.demo.fault import FAULTS
from health_exporter.demo.settings import DemoSettings

# Short, because the demo is: a default run is scraped about a dozen times.
_SCRAPE_INTERVAL = "5s"


def prometheus_configuration(ports: Sequence[int | None]) -> str:
    """A configuration for Prometheus that scrapes every rank.

    Args:
        ports: Of each rank; None where a rank found none that was free.
    """
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports if port is not None)
    return (
        "scrape_configs:\n"
        "  - job_name: health-exporter\n"
        f"    scrape_interval: {_SCRAPE_INTERVAL}\n"
        "    static_configs:\n"
        f"      - targets: [{targets}]\n"
    )


def introduction(
    settings: DemoSettings,
    serving: Mapping[int, Mapping[str, Any]],
    configuration: Path,
    *,
    first: bool,
) -> Iterator[str]:
    """What is trained, and where its metrics are.

    Args:
        settings: Of the run.
        serving: The `serving` event of each rank.
        configuration: File for Prometheus.
        first: False after a resume, when most of it has been said.
    """
    if first:
        rank_peak = serving[0]["rank_peak"]
        yield (
            f"training  a GPT of {serving[0]['n_params'] / 1e6:.1f} M parameters on the standard "
            f"library's source, {settings.ranks} ranks, {settings.steps} steps of "
            f"{settings.batch_size * settings.seq_len:,} tokens"
        )
        yield (
            f"peak      {rank_peak * settings.ranks / 1e9:.0f} GFLOP/s, measured: {settings.ranks} "
            f"x {rank_peak / 1e9:.0f} GFLOP/s of a float32 matrix product on this CPU"
        )
    for rank in sorted(serving):
        port = serving[rank]["port"]
        where = "none, no port was free" if port is None else f"http://localhost:{port}/metrics"
        yield f"metrics   {where}  (rank {rank})"
    if first:
        yield f"scrape    prometheus --config.file={configuration}"


def found_line(
    settings: DemoSettings,
    found: Sequence[Mapping[str, Any]],
    anomalies: Sequence[Mapping[str, Any]],
    *,
    finished: bool,
) -> str:
    """How the run ended, and whether what was wrong with it was found.

    Args:
        settings: Of the run.
        found: Anomalies of the kind that the fault should leave.
        anomalies: All of them.
        finished: Whether the training came to its last step.
    """
    fault = FAULTS[settings.fault]
    happened = "" if settings.fault == "none" else f"fault {settings.fault}: "
    end = "the run finished" if finished else "the run did not finish"
    if not fault.kinds:
        return f"{happened}{end}; {_count(anomalies)}"
    if not found:
        return f"{happened}{end}; NOT FOUND, {_count(anomalies)}"
    first = found[0]
    rank = "" if first.get("rank") is None else f" of rank {first['rank']}"
    return f"{happened}{end}; found as {first['kind']}{rank} in step {first['step']}"


def _count(anomalies: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(anomalies) or 'no'} anomal{'y' if len(anomalies) == 1 else 'ies'}"
