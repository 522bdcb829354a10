"""What pages and what does not, as in test_pages.py: on the servers on PATH and on newer ones."""

from __future__ import annotations

import math
import re
import signal
import time

import pytest

from health_exporter.demo.stack import Stack
from tests.stack.conftest import StartRun
from tests.stack.paged_run import one_dead, only_page, poll, quiet_for, resolved, trained
from tests.stack.server_version import versions

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.parametrize("stack", versions("prometheus"), indirect=True, scope="module"),
]


def test_a_killed_rank(stack: Stack, new_run: StartRun) -> None:
    run = new_run()
    ranks = [run.start(rank, 2) for rank in (0, 1)]
    trained(stack, run, 2)

    ranks[0].send(signal.SIGKILL)
    text = only_page(stack, run)
    run.start(0, 2, first_step=1)

    assert re.match(one_dead(stack, run, 0), text)
    resolved(stack, run)


def test_the_loss_is_nan_while_prometheus_is_down(stack: Stack, new_run: StartRun) -> None:
    well, sick = new_run("-well"), new_run("-sick")
    well.start(0, 1)
    rank = sick.start(0, 1)
    trained(stack, well, 1)
    trained(stack, sick, 1)

    rank.tell("loss", math.nan)
    text = only_page(stack, sick)
    stack.stop_prometheus()
    time.sleep(45)  # longer than Alertmanager waits where alerts are told once a minute
    stack.start_prometheus()
    poll(lambda: stack.query(f'ALERTS{{run="{sick.run}",alertstate="firing"}}'))
    assert len(stack.pager.open_pages(sick.run)) == 1
    rank.tell("loss", 2.0)

    named = re.escape(f"The loss of run {sick.run} was NaN or infinite at step ")
    assert re.match(named + r"\d+, ", text)
    resolved(stack, sick)
    quiet_for(stack, 1, well)


def test_what_is_innocent_pages_nobody(stack: Stack, new_run: StartRun) -> None:
    ends = {
        "-finish": lambda rank: rank.tell("exit"),
        "-ctrl-c": lambda rank: rank.send(signal.SIGINT),
    }
    runs = {name: new_run(name) for name in (*ends, "-resume", "-smaller", "-moved")}
    runs["-checkpoint"] = new_run("-checkpoint", heartbeat_timeout_s=3.0)
    runs["-lock"] = new_run("-lock")
    ranks = {name: [run.start(rank, 2) for rank in (0, 1)] for name, run in runs.items()}
    for run in runs.values():
        trained(stack, run, 2)

    for name, end in ends.items():
        for rank in ranks[name]:
            end(rank)
    for rank in (*ranks["-resume"], *ranks["-smaller"]):
        rank.send(signal.SIGTERM)
    ranks["-moved"][1].send(signal.SIGKILL)
    for rank in (*ranks["-resume"], *ranks["-smaller"], ranks["-moved"][1]):
        rank.process.wait()
    for number in (0, 1):
        runs["-resume"].start(number, 2, first_step=1000)
    runs["-smaller"].start(0, 1, first_step=1000)
    runs["-moved"].start(1, 2, first_step=1000)
    for rank in ranks["-checkpoint"]:
        rank.tell("phase", "checkpoint", 12.0)
    ranks["-lock"][0].tell("hold", 2.0)  # with eight times the time, 12 s and more

    quiet_for(stack, 30, *runs.values())
