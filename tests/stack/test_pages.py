"""Real training processes, Prometheus and Alertmanager: what becomes a page, and what a ticket.

The servers run with the shipped configuration at eight times its pace: scrapes every two seconds.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from health_exporter.demo.stack import Stack
from tests.stack.conftest import StartRun
from tests.stack.paged_run import (
    PlayedRanks,
    job_store,
    one_dead,
    only_page,
    poll,
    quiet_for,
    resolved,
    trained,
)

pytestmark = pytest.mark.timeout(180)


def blocked(folder: Path) -> bool:
    """Put a file in the place of a folder into which somebody writes; whether that went well."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.write_text("no folder")
    except IsADirectoryError:
        return False
    return True


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank(victim: int, stack: Stack, new_run: StartRun) -> None:
    run = new_run()
    ranks = [run.start(rank, 2) for rank in (0, 1)]
    trained(stack, run, 2)

    ranks[victim].send(signal.SIGSTOP)
    text = only_page(stack, run)
    ranks[victim].send(signal.SIGCONT)

    assert re.match(one_dead(stack, run, victim), text)
    resolved(stack, run)


def test_all_ranks_are_gone_with_their_targets(stack: Stack, new_run: StartRun) -> None:
    run = new_run()
    ranks = [run.start(rank, 3) for rank in (0, 1, 2)]
    trained(stack, run, 3)

    for rank in ranks:
        rank.send(signal.SIGKILL)
    run.forget(*ranks)
    text = only_page(stack, run)

    assert text.startswith(f"3 ranks of run {run.run} (of 3) dead: rank 0 on ")
    poll(lambda: not stack.query(f'training_health_rank_step{{run="{run.run}"}}'))
    time.sleep(12)  # longer than the way to a resolve takes
    assert len(stack.pager.open_pages(run.run)) == 1


def test_a_rank_that_rank_0_knows_to_be_dead(stack: Stack, new_run: StartRun) -> None:
    with job_store() as environ:
        run = new_run(environ=environ)
        ranks = [run.start(rank, 2, store=True) for rank in (0, 1)]
        trained(stack, run, 2)
        poll(lambda: stack.query(f'training_health_ranks{{run="{run.run}",status="alive"}} == 2'))

        ranks[1].send(signal.SIGKILL)
        text = only_page(stack, run)

        assert stack.query(f'run:training_health_dead_told:max{{run="{run.run}"}} == 1')
        assert f"1 rank of run {run.run} (of 2) dead: rank 1 on " in text
        run.start(1, 2, store=True, first_step=1)
        resolved(stack, run)


def test_half_of_a_thousand_ranks(stack: Stack) -> None:
    name = "half-of-a-thousand"
    hosts = [
        PlayedRanks(name, range(128 * i, 128 * (i + 1)), 1024, f"a-rather-long-host-name-{i:04}")
        for i in range(8)
    ]
    try:
        stack.set_targets([host.address for host in hosts], name=name)
        poll(lambda: stack.query(f'count(training_health_rank_step{{run="{name}"}} > 3) == 1024'))
        for host in hosts[4:]:
            host.die()
        [page] = poll(lambda: stack.pager.pages(name))
    finally:
        stack.set_targets([], name=name)
        for host in hosts:
            host.die()

    assert page.summary.startswith(f"512 ranks of run {name} (of 1024) dead: rank 1000 on ")
    assert "Hosts: a-rather-long-host-name-0004 (128 ranks), " in page.summary
    assert len(page.summary) < 1024  # Alertmanager cuts off what is longer
    assert len(json.dumps(page.body)) < 8192
    assert len(stack.pager.pages(name)) == 1


def test_a_stuck_rank(stack: Stack, new_run: StartRun) -> None:
    with job_store() as environ:
        run = new_run(environ=environ, heartbeat_timeout_s=3.0)
        ranks = [run.start(rank, 2, store=True) for rank in (0, 1)]
        trained(stack, run, 2)

        ranks[1].tell("hang")
        time.sleep(0.5)
        ranks[0].tell("hang")  # it waits for the other
        text = only_page(stack, run)

        assert f"Run {run.run} waits for rank 1 on " in text
        assert "rank 0" not in text


def test_a_stuck_rank_without_a_store(stack: Stack, new_run: StartRun) -> None:
    run = new_run(heartbeat_timeout_s=3.0)
    ranks = [run.start(rank, 2) for rank in (0, 1)]
    trained(stack, run, 2)

    ranks[1].tell("hang")
    time.sleep(0.5)
    ranks[0].tell("hang")
    text = only_page(stack, run)

    assert f"Run {run.run} waits for rank 1 on " in text
    assert "rank 0" not in text


def test_a_rank_that_never_came(stack: Stack, new_run: StartRun) -> None:
    run = new_run()
    for rank in (0, 1, 3):
        run.start(rank, 4)

    text = only_page(stack, run)

    assert text == f"Run {run.run} expected 4 ranks and has 3. Missing: rank 2."
    run.start(2, 4)
    resolved(stack, run)


def test_a_resume_that_lost_state(stack: Stack, new_run: StartRun) -> None:
    run = new_run(receipt_interval_s=1.0)
    first = run.start(0, 1)
    poll(lambda: stack.query(f'training_health_step{{run="{run.run}"}} > 40'))
    first.send(signal.SIGTERM)
    first.process.wait()
    step = int(stack.query(f'last_over_time(training_health_step{{run="{run.run}"}}[1m])')[0][1])

    # On another port, and the jump comes before its first scrape.
    resumed = run.start(0, 1, first_step=step + 1, idle=True)
    resumed.tell("observe", 9.0, 1.0)
    resumed.tell("train")

    text = only_page(stack, run)
    assert text.startswith(
        f"The loss of run {run.run} jumped when it was resumed, at step {step + 1}"
    )
    resolved(stack, run)


def test_an_uncaught_exception(stack: Stack, new_run: StartRun) -> None:
    run = new_run()
    ranks = [run.start(rank, 2) for rank in (0, 1)]
    trained(stack, run, 2)

    ranks[1].tell("raise")
    ranks[0].send(signal.SIGTERM)  # as a launcher does

    assert only_page(stack, run) == f"Run {run.run} has failed: rank 1: FloatingPointError."
    for rank in (0, 1):
        run.start(rank, 2, first_step=10_000)
    resolved(stack, run)


def test_sigterm_and_no_resume(stack: Stack, new_run: StartRun) -> None:
    run = new_run()
    rank = run.start(0, 1)
    trained(stack, run, 1)

    rank.send(signal.SIGTERM)
    poll(lambda: "TrainingHealthRunTerminated" in stack.pager.ticket_alerts(run.run))

    assert stack.pager.pages(run.run) == []
    assert only_page(stack, run).startswith(f"Run {run.run} was ended by SIGTERM ")
    run.start(0, 1, first_step=10_000)
    resolved(stack, run)


def test_of_two_runs_only_the_sick_one(stack: Stack, new_run: StartRun) -> None:
    sick, well = new_run("-sick"), new_run("-well")
    ranks = [run.start(rank, 2) for run in (sick, well) for rank in (0, 1)]
    trained(stack, sick, 2)
    trained(stack, well, 2)

    ranks[1].send(signal.SIGKILL)
    only_page(stack, sick)

    quiet_for(stack, 10, well)


def test_warnings_are_tickets(stack: Stack, new_run: StartRun, tmp_path: Path) -> None:
    run = new_run(receipt_interval_s=0.3)
    rank = run.start(0, 1)
    trained(stack, run, 1)
    spiky = new_run("-spiky")
    spike = spiky.start(0, 1)
    poll(lambda: stack.query(f'training_health_step{{run="{spiky.run}"}} > 40'))

    rank.tell("type")
    poll(lambda: blocked(tmp_path / run.run))
    for _ in range(12):
        spike.tell("observe", 9.0, 100.0)
        for loss in (2.0, 2.01, 2.02, 2.005, 2.015):
            spike.tell("observe", loss, 1.0)

    poll(lambda: "TrainingHealthObservationsRejected" in stack.pager.ticket_alerts(run.run))
    poll(lambda: "TrainingHealthReceiptNotWritten" in stack.pager.ticket_alerts(run.run))
    poll(lambda: "TrainingHealthLossSpikes" in stack.pager.ticket_alerts(spiky.run))
    poll(lambda: "TrainingHealthGradNormSpikes" in stack.pager.ticket_alerts(spiky.run))
    quiet_for(stack, 1, run, spiky)


def test_an_endpoint_that_cannot_be_reached(stack: Stack, new_run: StartRun) -> None:
    with job_store() as environ:
        run = new_run(environ=environ)
        ranks = [run.start(rank, 2, store=True) for rank in (0, 1)]
        trained(stack, run, 2)
        poll(lambda: stack.query(f'training_health_ranks{{run="{run.run}",status="alive"}} == 2'))

        run.forget(ranks[1])

        poll(lambda: "TrainingHealthEndpointDown" in stack.pager.ticket_alerts(run.run), 90)
        quiet_for(stack, 1, run)


def test_the_watchdog_calls_and_never_pages(stack: Stack) -> None:
    poll(lambda: len(stack.pager.watchdog_times) >= 1)

    assert not any("Watchdog" in str(event.body) for event in stack.pager.events)
