"""Every way a trainer's process can end: the receipt says which, and the end stays what it was."""

from __future__ import annotations

import random
import signal
import time
from typing import NamedTuple

import pytest

from health_exporter.runtime.receipt_reader import read_receipt
from tests.stack.trainer_script import Script, StartScript, poll
from tests.unit.export.raw_http import exchange, get


class Case(NamedTuple):
    """A script, the signal it gets once it says "ready", and what its receipt says then."""

    body: str
    status: str
    signum: int | None = None
    error: tuple[str, str] | None = None


LOOP = """
    for step in range(3):
        exporter.observe_step(step, 2.0 - step)
"""
WITH = "with make() as exporter:" + LOOP
# The same without `with`.
BARE = "exporter = make()\nif True:" + LOOP
FOR_EVER = """
    tell("ready")
    while True:
        time.sleep(60)
"""
TERM = signal.SIGTERM

CASES = {
    "normal": Case(WITH, "finished"),
    "normal, bare": Case(BARE, "finished"),
    "closed by hand": Case(BARE + "exporter.close()", "finished"),
    "closed as failed": Case(BARE + "exporter.close('failed')", "failed"),
    "exception": Case(
        WITH + "    raise ValueError('bad \\ud800 batch')",
        "failed",
        error=("ValueError", "bad \ud800 batch"),
    ),
    "exception, bare": Case(
        BARE + "raise ValueError('bad batch')", "failed", error=("ValueError", "bad batch")
    ),
    "exception whose text cannot be had": Case(
        "class Odd(Exception):\n    def __str__(self): return self.missing\n"
        + WITH
        + "    raise Odd",
        "failed",
        error=("Odd", ""),
    ),
    "exception outside of the block": Case(WITH + "raise ValueError('later')", "finished"),
    "exception that is caught": Case(
        "with contextlib.suppress(OSError):\n    "
        + WITH.replace("\n", "\n    ")
        + "    raise OSError(28, 'disk')",
        "failed",
        error=("OSError", "[Errno 28] disk"),
    ),
    "sys.exit(0)": Case(WITH + "    sys.exit(0)", "finished"),
    "sys.exit()": Case(WITH + "    sys.exit()", "finished"),
    "sys.exit(0), bare": Case(BARE + "sys.exit(0)", "finished"),
    "sys.exit(3)": Case(WITH + "    sys.exit(3)", "failed", error=("SystemExit", "3")),
    "sys.exit(text)": Case(WITH + "    sys.exit('no')", "failed", error=("SystemExit", "no")),
    "KeyboardInterrupt": Case(
        WITH + FOR_EVER, "interrupted", signal.SIGINT, error=("KeyboardInterrupt", "")
    ),
    "KeyboardInterrupt, bare": Case(
        BARE + FOR_EVER, "interrupted", signal.SIGINT, error=("KeyboardInterrupt", "")
    ),
    "os._exit": Case(WITH + "    os._exit(4)", "lost"),
    "SIGKILL": Case(WITH + FOR_EVER, "lost", signal.SIGKILL),
    "SIGTERM": Case(WITH + FOR_EVER, "terminated", TERM),
    "SIGTERM, bare": Case(BARE + FOR_EVER, "terminated", TERM),
    "SIGTERM on another thread's exporter": Case(
        """
def train():
    with make() as exporter:
        exporter.observe_step(1, 1.0)
        tell("ready")
        time.sleep(600)
threading.Thread(target=train, daemon=True).start()
while True:
    time.sleep(60)
""",
        "lost",
        TERM,
    ),
    "normal, in another thread": Case(
        "def train():\n    "
        + WITH.replace("\n", "\n    ")
        + "\nt = threading.Thread(target=train)\nt.start()\nt.join()",
        "finished",
    ),
    "normal, bare, in another thread": Case(
        "def train():\n    "
        + BARE.replace("\n", "\n    ")
        + "\nt = threading.Thread(target=train)\nt.start()\nt.join()",
        "finished",
    ),
    "SIGTERM in native code": Case(
        # Waits for a lock that it has: no signal interrupts that, as in a collective.
        WITH + "    tell('ready')\n    lock = ctypes.create_string_buffer(64)\n"
        "    for _ in range(2): ctypes.CDLL(None).pthread_mutex_lock(lock)",
        "terminated",
        TERM,
    ),
    "SIGTERM in recv": Case(
        WITH + "    a, b = socket.socketpair()\n    tell('ready')\n    a.recv(1)",
        "terminated",
        TERM,
    ),
    "SIGTERM while a thread trains": Case(
        """
exporter = make()
def train():
    for step in range(10**9):
        exporter.observe_step(step, 1.0)
        if step == 100: tell("ready")
threading.Thread(target=train, daemon=True).start()
while True:
    time.sleep(60)
""",
        "terminated",
        TERM,
    ),
    "SIGTERM with the trainer's flag": Case(
        """
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with make() as exporter:
    exporter.observe_step(1, 1.0)
    tell("ready")
    while not stop.is_set(): time.sleep(0.01)
    exporter.observe_step(2, 1.0)
""",
        "terminated",
        TERM,
    ),
    "SIGTERM with the trainer's flag, set later": Case(
        """
stop = threading.Event()
with make() as exporter:
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    exporter.observe_step(1, 1.0)
    tell("ready")
    while not stop.is_set(): time.sleep(0.01)
assert signal.getsignal(signal.SIGTERM).__name__ == "<lambda>"
""",
        "finished",
        TERM,
    ),
    "SIGTERM with the trainer's SystemExit": Case(
        "def leave(*_): sys.exit(7)\nsignal.signal(signal.SIGTERM, leave)\n" + WITH + FOR_EVER,
        "terminated",
        TERM,
        error=("SystemExit", "7"),
    ),
    "SIGTERM with the trainer's SystemExit, bare": Case(
        "def leave(*_): sys.exit(7)\nsignal.signal(signal.SIGTERM, leave)\n" + BARE + FOR_EVER,
        "terminated",
        TERM,
    ),
    "SIGTERM with the trainer's exception": Case(
        "class Preempted(Exception): pass\ndef leave(*_): raise Preempted('go')\n"
        "signal.signal(signal.SIGTERM, leave)\n" + WITH + FOR_EVER,
        "terminated",
        TERM,
        error=("Preempted", "go"),
    ),
    "SIGTERM ignored": Case(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + WITH
        + "    tell('ready')\n    sys.stdin.readline()",
        "finished",
        TERM,
    ),
    "asyncio, SIGTERM": Case(
        """
async def main():
    with make() as exporter:
        exporter.observe_step(1, 1.0)
        tell("ready")
        await asyncio.sleep(600)
asyncio.run(main())
""",
        "terminated",
        TERM,
    ),
    "asyncio, SIGTERM handled by the loop": Case(
        """
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with make() as exporter:
        exporter.observe_step(1, 1.0)
        tell("ready")
        await stop.wait()
    sys.exit(5)
asyncio.run(main())
""",
        "terminated",
        TERM,
    ),
    "asyncio, SIGTERM handled by the loop later": Case(
        """
async def main():
    stop = asyncio.Event()
    with make() as exporter:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        exporter.observe_step(1, 1.0)
        tell("ready")
        await stop.wait()
    sys.exit(5)
asyncio.run(main())
""",
        "finished",
        TERM,
    ),
    "asyncio, another signal handled by the loop": Case(
        """
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    with make() as exporter:
        exporter.observe_step(1, 1.0)
        tell("ready")
        await stop.wait()
    await asyncio.sleep(0)
asyncio.run(main())
""",
        "finished",
        signal.SIGUSR1,
    ),
}


def run(script: Script, case: Case) -> tuple[int, str]:
    if case.signum is not None:
        script.wait_for("ready")
        script.process.send_signal(case.signum)
        if case.signum == TERM and "readline" in case.body:
            script.go_on()
    return script.end()


@pytest.mark.parametrize("name", CASES)
def test_an_end(start: StartScript, name: str):
    case = CASES[name]
    plain = start(case.body, plain=True)
    script = start(case.body)

    code, errors = run(script, case)

    assert code == run(plain, case)[0], errors
    receipt = read_receipt(script.record)
    assert receipt["status"] == case.status, errors
    error = receipt["exception"]
    assert (error and (error["type"], error["message"])) == case.error
    assert (receipt["ended_at"] is None) == (case.status == "lost")
    if case.status != "lost":
        assert receipt["last_step"] in {1, 2} or "thread trains" in name
    states = [event["state"] for event in script.events() if event["event"] == "state"]
    assert states == ["running"] + ([case.status] if case.status != "lost" else [])
    if case.status != "lost":
        assert script.report()["status"] == case.status
        assert "Traceback" not in errors or case.error or "outside" in name


HAMMER = """
    tell("ready")
    step = 0
    while True:
        exporter.observe_step(step, 2.0 + (step % 7) / 100, grad_norm=1.0 + (step % 5) / 10)
        step += 1
"""


@pytest.mark.parametrize("head", ["with make() as exporter:", "exporter = make()\nif True:"])
def test_sigterm_at_any_moment_of_a_busy_trainer(start: StartScript, head: str):
    """Also in the middle of an observation: it is recorded whole, and then the process ends."""
    for _ in range(3):
        script = start(head + HAMMER)
        script.wait_for("ready")
        time.sleep(random.uniform(0.0, 0.3))
        began = time.monotonic()
        script.process.terminate()

        code, errors = script.end()

        assert (code, errors) == (-TERM, "")
        assert time.monotonic() - began < 10
        report = script.report()
        assert report["status"] == "terminated"
        assert report["n_steps"] == report["last_step"] + 1
        assert script.events()[-1]["step"] == report["last_step"]


def test_sigterm_at_any_moment_of_a_trainer_that_saves_and_reports(start: StartScript):
    """What holds a lock in the training thread must not be interrupted by the end."""
    script_body = """
with make() as exporter:
    exporter.observe_step(0, 1.0)
    tell("ready")
    while True:
        exporter.load_state_dict(exporter.state_dict())
        exporter.report()
        with exporter.phase("wrong"):
            pass
"""
    for _ in range(5):
        script = start(script_body)
        script.wait_for("ready")
        time.sleep(random.uniform(0.0, 0.3))
        script.process.terminate()

        code, _ = script.end(15)

        assert code == -TERM
        assert script.report()["status"] == "terminated"


def test_an_exception_of_a_signal_handler_passes_through_an_observation(start: StartScript):
    """A trainer's alarm rings in the middle of `observe_step`: it is the trainer's own."""
    script = start("""
import logging
logging.disable()  # it swallows what is raised while it writes
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
with make() as exporter:
    step = 0
    for _ in range(30):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while True:
                step += 1
                exporter.observe_step(step, 1.0 + step % 7 / 100)
                if step > 10**6: sys.exit("the alarm was swallowed")
        except Alarm:
            continue
""")

    code, errors = script.end()

    assert code == 0, errors


def test_a_second_sigterm_ends_the_wait_for_a_last_scrape(start: StartScript):
    script = start("with make(linger_s=300) as exporter:" + LOOP + FOR_EVER)
    script.wait_for("ready")
    script.process.terminate()
    script.wait_for_status("terminated")
    script.process.terminate()

    assert script.end(10) == (-TERM, "")
    assert script.report()["status"] == "terminated"


@pytest.mark.parametrize(
    ("signum", "bare"), [(TERM, False), (TERM, True), (signal.SIGINT, False), (signal.SIGINT, True)]
)
def test_a_signal_ends_the_wait_after_a_normal_end(start: StartScript, signum: int, bare: bool):
    body = (
        "exporter = make(linger_s=300)\nif True:"
        if bare
        else "with make(linger_s=300) as exporter:"
    )
    script = start(body + LOOP)
    script.wait_for_status("finished")
    script.process.send_signal(signum)

    code, _ = script.end(10)

    if not bare or signum == TERM:  # an interrupt of what runs at exit is only printed by Python
        assert code == -signum
    assert script.report()["status"] == "finished"


def test_a_sigterm_while_the_last_receipt_is_written_waits_for_it(start: StartScript):
    """The report is slow here, as on a network's file system."""
    script = start("""
exporter = make(linger_s=300)
report = exporter._run.report
def slow():
    if exporter.state == "finished":
        tell("ready")
        time.sleep(1)
    return report()
exporter._run.receipts._full["report.json"] = slow
exporter.observe_step(0, 1.0)
exporter.close()
""")
    script.wait_for("ready")
    script.process.terminate()

    assert script.end(20) == (-TERM, "")
    assert script.report()["status"] == "finished"


@pytest.mark.parametrize(
    "head", ["with make(linger_s=30) as exporter:", "exporter = make(linger_s=30)\nif True:"]
)
def test_the_end_waits_until_a_scrape_has_seen_it(start: StartScript, head: str):
    """Also without `with`, where the program has ended already, and Python starts no threads."""
    script = start(head + LOOP)
    assert script.port is not None
    script.wait_for_status("finished")

    body = exchange(script.port, get("/metrics")).body.decode()

    assert 'training_health_run_state{run="r",state="finished"} 1.0' in body
    assert 'training_health_rank_state{rank="0",run="r",state="finished"} 1.0' in body
    assert script.end(10) == (0, "")


def test_a_hung_disk_delays_the_end_by_seconds_only(start: StartScript):
    script = start("""
exporter = make()
exporter.observe_step(1, 1.0)
exporter._run.receipts._full["report.json"] = lambda: time.sleep(600)
tell("ready")
time.sleep(600)
""")
    script.wait_for("ready")
    began = time.monotonic()
    script.process.terminate()

    assert script.end(25)[0] == -TERM
    assert time.monotonic() - began < 20


def test_a_hung_device_does_not_keep_a_terminated_process(start: StartScript):
    """Its loss is on an accelerator that never answers, as after a collective that hangs."""
    script = start("""
class Kind: type = "cuda"
class Tensor:
    shape, device, dtype = (), Kind, "float32"
    def detach(self): return self
class Event:
    def record(self): pass
    def query(self): return False
    def synchronize(self): ctypes.CDLL(None).sleep(600)
class Host:
    def copy_(self, tensor, non_blocking): pass
class torch:
    class cuda:
        Event = Event
        device = staticmethod(lambda device: contextlib.nullcontext())
        is_initialized = staticmethod(lambda: False)
    empty = staticmethod(lambda *shape, **options: Host())
sys.modules["torch"] = torch
with make() as exporter:
    exporter.observe_step(1, 1.0)
    exporter.observe_step(2, Tensor())
    tell("ready")
    lock = ctypes.create_string_buffer(64)
    for _ in range(2): ctypes.CDLL(None).pthread_mutex_lock(lock)
""")
    script.wait_for("ready")
    began = time.monotonic()
    script.process.terminate()

    assert script.end(25)[0] == -TERM
    assert time.monotonic() - began < 15
    assert script.report()["status"] == "terminated"
    assert script.report()["last_step"] == 1


def test_poll_is_bounded():
    with pytest.raises(AssertionError):
        poll(lambda: False, 0.01)
