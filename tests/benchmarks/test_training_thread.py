"""What the exporter costs the training thread a step, beats and all, beside the bare monitor.

All take turns in one process, as in `test_observe_step`; the exporters' background threads (beats,
receipts, endpoint) run meanwhile, and one of them is scraped.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from health_exporter import HealthExporter, ModelFlopConfig, TrainingHealthMonitor
from tests.benchmarks.test_observe_step import GPT2, PEAK, Observe, medians_us

# Generous: this fails when a step waits for something, not when the machine is busy.
CEILING_US = 2_000.0


def production() -> TrainingHealthMonitor:
    return TrainingHealthMonitor.production(
        flop_config=ModelFlopConfig(**GPT2), peak_flops_per_sec=PEAK
    )


@contextmanager
def scraping(url: str) -> Iterator[None]:
    """Ten scrapes a second: 150 times as many as Prometheus makes."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(0.1):
            with urllib.request.urlopen(url, timeout=5) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def with_phases(exporter: HealthExporter) -> Observe:
    def observe(*args: object, **kwargs: object) -> object:
        for phase in ("data", "forward", "backward", "optimizer"):
            with exporter.phase(phase):
                pass
        return exporter.observe_step(*args, **kwargs)  # type: ignore[arg-type]  # as given

    return observe


def test_cost_on_the_training_thread(tmp_path: Path, quick: bool) -> None:
    with ExitStack() as stack:

        def exporter(name: str, rank: int) -> HealthExporter:
            made = HealthExporter(
                production() if rank == 0 else None,
                run=name,
                rank=rank,
                world_size=1 + rank,
                port=0,
                receipt_dir=tmp_path,
                linger_s=0.0,
                beat_interval_s=0.5,
                beat_timeout_s=5.0,
            )
            return stack.enter_context(made)

        first, phased, other = exporter("first", 0), exporter("phased", 0), exporter("other", 1)
        assert first.url is not None
        stack.enter_context(scraping(first.url))
        contenders = {
            "monitor, the specification's preset": TrainingHealthMonitor(
                flop_config=ModelFlopConfig(**GPT2), peak_flops_per_sec=PEAK
            ).observe_step,
            "monitor, the production preset": production().observe_step,
            "exporter on rank 0": first.observe_step,
            "exporter on rank 0, four phases marked": with_phases(phased),
            "exporter on another rank": other.observe_step,
        }
        blocks = 4 if quick else 60
        medians = medians_us(list(contenders.values()), window=200, blocks=blocks, block=100)
    print("\nmicroseconds a step (median)")
    for name, median in zip(contenders, medians, strict=True):
        print(f"{name:<42} {median:>8.2f}")
    assert max(medians) < CEILING_US
