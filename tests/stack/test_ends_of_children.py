"""What a trainer forks ends as it would without the exporter, and its end is not the trainer's."""

from __future__ import annotations

import os
import signal

import pytest

from health_exporter.runtime.receipt_reader import read_receipt
from tests.stack.trainer_script import StartScript

FORKS = {
    "exits": "if os.fork() == 0: sys.exit(9)\nassert code() == 9",
    "exits from a block": (
        "if os.fork() == 0:\n    with exporter: sys.exit(9)\nassert code() == 9"
    ),
    "raises": "if os.fork() == 0: raise ValueError\nassert code() == 1",
    "is terminated": (
        "worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))\n"
        "worker.start()\nworker.terminate()\nworker.join()\n"
        f"assert worker.exitcode == {-signal.SIGTERM}, worker.exitcode"
    ),
    "uses the exporter": (
        "if os.fork() == 0:\n    exporter.observe_step(7, 1.0)\n"
        "    exporter.load_state_dict(exporter.state_dict())\n    exporter.report()\n"
        "    exporter.close()\n    os._exit(9)\n"
        "assert code() == 9"
    ),
    "has its own": (
        "if os.fork() == 0:\n"
        "    with make(run='child') as own: own.observe_step(1, 1.0)\n    sys.exit(9)\n"
        "assert code() == 9"
    ),
}


@pytest.mark.parametrize("name", FORKS)
def test_a_forked_childs_end_is_not_the_trainers(start: StartScript, name: str):
    script = start(f"""
def code(): return os.waitstatus_to_exitcode(os.wait()[1])
exporter = make()
exporter.observe_step(1, 1.0)
{FORKS[name]}
exporter.observe_step(2, 1.0)
tell("ready")
sys.stdin.readline()
""")
    script.wait_for("ready")
    assert read_receipt(script.record)["status"] == "running"
    assert [event["event"] for event in script.events()] == ["start", "state"]
    script.go_on()

    code, errors = script.end()

    assert code == 0, errors
    assert script.report()["status"] == "finished"
    assert script.report()["n_steps"] == 2
    if name == "has its own":
        assert read_receipt(script.folder / "child")["status"] == "finished"


def test_the_trainer_is_terminated_while_its_workers_live(start: StartScript):
    script = start("""
exporter = make()
exporter.observe_step(1, 1.0)
Process = multiprocessing.get_context("fork").Process
workers = [Process(target=time.sleep, args=(600,)) for _ in range(2)]
for worker in workers: worker.start()
tell("ready", *(worker.pid for worker in workers))
time.sleep(600)
""")
    workers = [int(pid) for pid in script.wait_for("ready").split()]
    script.process.terminate()
    script.process.wait(20)

    assert script.process.returncode == -signal.SIGTERM
    assert script.report()["status"] == "terminated"
    for pid in workers:
        os.kill(pid, 0)


def test_a_child_that_is_terminated_at_once_dies_alone(start: StartScript):
    """At any moment after the fork: with the trainer's handlers, and while it lets go of them."""
    script = start("""
exporter = make()
for n in range(1000):
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(3)
    for _ in range(n * 37 % 2000): pass
    os.kill(child, signal.SIGTERM)
    ended = os.waitstatus_to_exitcode(os.wait()[1])
    assert ended == -signal.SIGTERM, ended
time.sleep(2.5)  # for longer than the main thread may take to handle a signal
exporter.observe_step(1, 1.0)
""")

    assert script.end() == (0, "")
    assert script.report()["status"] == "finished"


def test_a_child_of_native_code_is_terminated_alone(start: StartScript):
    """Such a fork runs no hook of Python: the child keeps the trainer's handlers."""
    script = start("""
exporter = make()
exporter.observe_step(1, 1.0)
native = ctypes.PyDLL(None)
child = native.fork()
if child == 0:
    native.usleep(20_000_000)
    native._exit(3)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
time.sleep(2.5)  # for longer than the main thread may take to handle a signal
os.kill(child, signal.SIGKILL)
""")

    assert script.end() == (0, "")
    assert script.report()["status"] == "finished"
