from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from health_exporter.core.beat import Beat
from health_exporter.runtime.probe import ProcessProbe, process_identity
from tests.unit.export.raw_http import eventually

pytestmark = pytest.mark.skipif(not process_identity(), reason="needs /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def beat_of(pid: int, **changes: object) -> Beat:
    made = Beat(1, "host", "", pid, 5, 1, 1, "", "running", 0.0, 30.0)
    made = replace(made, process=process_identity(pid))
    return replace(made, **changes)  # type: ignore[arg-type]


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


# Processes of this machine


def test_a_process_that_runs_has_not_ended(child):
    probe = ProcessProbe()
    probe.learn([beat_of(child.pid)])
    assert probe.ended() == []


def test_a_killed_process_has_ended_even_while_nobody_has_waited_for_it(child):
    beat, probe = beat_of(child.pid), ProcessProbe()
    probe.learn([beat])
    child.kill()
    assert eventually(lambda: is_zombie(child.pid))
    assert probe.ended() == [beat]
    child.wait()
    assert probe.ended() == [beat]
    probe.forget([beat])
    probe.learn([beat])
    assert probe.ended() == []


def test_a_stopped_process_has_not_ended(child):
    probe = ProcessProbe()
    probe.learn([beat_of(child.pid)])
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert probe.ended() == []


def test_a_process_of_another_start_time_under_the_same_number_is_another(child):
    # What a reused number looks like: the probe must have seen the right one before.
    beat = beat_of(child.pid)
    other = replace(beat, process=beat.process.rpartition("/")[0] + "/1")
    probe = ProcessProbe()
    probe.learn([other])
    assert probe.ended() == []


@pytest.mark.parametrize(
    "process", ["", "another-kernel/4026531836/{pid}/{start}", "{kernel}/1/{pid}/{start}"]
)
def test_a_process_of_another_machine_or_namespace_proves_nothing(child, process: str):
    kernel, _, pid, start = process_identity(child.pid).split("/")
    beat = beat_of(child.pid, process=process.format(kernel=kernel, pid=pid, start=start))
    probe = ProcessProbe()
    probe.learn([beat])
    child.kill()
    child.wait()
    assert probe.ended() == []


def test_a_process_that_was_never_found_proves_nothing(child):
    beat = beat_of(child.pid)
    child.kill()
    child.wait()
    probe = ProcessProbe()
    probe.learn([beat])
    assert probe.ended() == []


def test_a_process_that_said_goodbye_is_looked_after_no_more(child):
    probe = ProcessProbe()
    probe.learn([beat_of(child.pid)])
    probe.learn([beat_of(child.pid, state="finished")])
    child.kill()
    child.wait()
    assert probe.ended() == []


def test_a_successor_is_looked_after_in_its_place(child):
    probe = ProcessProbe()
    probe.learn([beat_of(child.pid)])
    probe.learn([beat_of(os.getpid())])
    child.kill()
    child.wait()
    assert probe.ended() == []


# Endpoints of other machines


def elsewhere(address: str) -> Beat:
    return beat_of(1, process="", address=address)


def test_an_endpoint_that_closed_after_it_had_accepted_is_refused(listener):
    beat, probe = elsewhere(address_of(listener)), ProcessProbe()
    probe.meet([beat])
    assert probe.refused([beat]) == []
    listener.close()
    assert probe.refused([beat]) == [beat]


def test_an_endpoint_that_never_accepted_proves_nothing(listener):
    beat, probe = elsewhere(address_of(listener)), ProcessProbe()
    listener.close()
    probe.meet([beat])
    assert probe.refused([beat]) == []


def test_an_endpoint_whose_process_hangs_accepts(listener):
    # Nobody ever calls accept(): the kernel does.
    beat, probe = elsewhere(address_of(listener)), ProcessProbe()
    probe.meet([beat])
    assert probe.refused([beat] * 5) == []


def test_another_address_of_the_rank_proves_nothing(listener):
    beat, probe = elsewhere(address_of(listener)), ProcessProbe()
    probe.meet([beat])
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed = address_of(other)
    assert probe.refused([elsewhere(closed)]) == []


@pytest.mark.parametrize("address", ["", "nonsense", "host:port", "[::1]:99999", "127.0.0.1:0"])
def test_an_address_that_is_none_proves_nothing(address: str):
    beat, probe = elsewhere(address), ProcessProbe()
    probe.meet([beat])
    assert probe.refused([beat]) == []


def test_endpoints_are_met_a_few_at_a_time_and_each_once(listener):
    listener.setblocking(False)
    beats = [replace(elsewhere(address_of(listener)), rank=rank) for rank in range(50)]
    probe = ProcessProbe()

    def accepted() -> int:
        n = 0
        try:
            while True:
                listener.accept()[0].close()
                n += 1
        except BlockingIOError:
            return n

    probe.meet(beats)
    assert 0 < accepted() <= 32
    for _ in range(4):
        probe.meet(beats)
        accepted()
    probe.meet(beats)
    assert accepted() == 0
