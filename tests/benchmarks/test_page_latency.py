"""From `kill -9` to the page: real processes, Prometheus, Alertmanager and a PagerDuty stand-in."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from health_exporter.demo.stack import Stack
from tests.stack.paged_run import PagedRun, job_store, poll


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("faster", "limit_s"), [(3.0, 30.0), (1.0, 90.0)], ids=["scrapes every 5 s", "every 15 s"]
)
def test_from_kill_to_page(faster: float, limit_s: float, tmp_path: Path, quick: bool) -> None:
    """Of the shipped values, and of those three times as fast.

    Rank 0 of one run is killed, which only its silence tells; rank 1 of another, of which rank 0
    knows. Each at the worst moment: right after it has been scraped.
    """
    if quick and faster == 1:
        pytest.skip("takes two minutes; the quicker pace has been measured")
    (tmp_path / "stack").mkdir()
    with Stack(tmp_path / "stack", faster=faster) as stack, job_store() as environ:
        took = {
            victim: _kill(stack, tmp_path, victim, environ if victim else {}) for victim in (0, 1)
        }

    print(
        f"\nkill -9 to page, scrapes every {15 / faster:g} s: rank 0, known by its silence, "
        f"{took[0]:.1f} s; rank 1, known to rank 0, {took[1]:.1f} s"
    )
    assert max(took.values()) <= limit_s


def _kill(stack: Stack, folder: Path, victim: int, environ: dict[str, str]) -> float:
    name = f"victim-{victim}"
    run = PagedRun(
        name,
        folder / name,
        lambda addresses: stack.set_targets(addresses, name=name),
        environ=environ,
    )
    try:
        ranks = [run.start(rank, 2, store=bool(environ)) for rank in (0, 1)]
        seen = f'timestamp(training_health_rank_step{{run="{name}",rank="{victim}"}} > 3)'
        before = poll(lambda: stack.query(seen))[0][1]
        if environ:
            alive = f'training_health_ranks{{run="{name}",status="alive"}} == 2'
            poll(lambda: stack.query(alive))
            before = stack.query(seen)[0][1]
        poll(lambda: stack.query(seen)[0][1] > before)

        killed = time.time()
        ranks[victim].send(signal.SIGKILL)
        [page] = poll(lambda: stack.pager.pages(name), 120)
        return float(page.time - killed)
    finally:
        run.dispose()
