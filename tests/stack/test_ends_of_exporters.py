"""Exporters that come and go leave the process's hooks as they were, whoever else uses them."""

from __future__ import annotations

import signal
import subprocess

import pytest

from health_exporter.runtime.receipt_reader import read_receipt
from tests.stack.trainer_script import StartScript
from tests.unit.export.raw_http import exchange, get

TERM = signal.SIGTERM


def test_two_exporters_end_together(start: StartScript):
    script = start("""
second = make(run="s", rank=0)
with make() as exporter:
    exporter.observe_step(1, 1.0)
    second.observe_step(1, 1.0)
    tell("ready")
    time.sleep(600)
""")
    script.wait_for("ready")
    script.process.terminate()

    assert script.end() == (-TERM, "")
    assert script.report()["status"] == "terminated"
    assert read_receipt(script.folder / "s")["status"] == "terminated"


def test_a_sigterm_after_a_failure_does_not_end_the_wait_for_a_last_scrape(start: StartScript):
    """When a rank dies, the others fail, and their launcher sends SIGTERM a moment later."""
    script = start("""
with make(linger_s=60) as exporter:
    exporter.observe_step(1, 1.0)
    raise RuntimeError("connection closed by peer")
""")
    assert script.port is not None
    script.wait_for_status("failed")
    script.process.terminate()
    # Longer than the other thread leaves to the main thread, which then takes over.
    with pytest.raises(subprocess.TimeoutExpired):
        script.process.wait(3)

    body = exchange(script.port, get("/metrics")).body.decode()
    code, errors = script.end(10)

    assert 'training_health_run_state{run="r",state="failed"} 1.0' in body
    assert code == -TERM
    assert "RuntimeError: connection closed by peer" in errors
    assert script.report()["status"] == "failed"


@pytest.mark.parametrize("pause_s", [0.1, 3.0])
def test_a_second_sigterm_after_a_failure_does(start: StartScript, pause_s: float):
    script = start("""
with make(linger_s=60) as exporter:
    exporter.observe_step(1, 1.0)
    raise RuntimeError("connection closed by peer")
""")
    script.wait_for_status("failed")
    script.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        script.process.wait(pause_s)
    script.process.terminate()

    assert script.end(10)[0] == -TERM


def test_a_closed_exporter_leaves_the_process_as_it_was(start: StartScript):
    script = start("""
def own(*_): pass
before = signal.signal(signal.SIGTERM, own), sys.excepthook
for run in "abc":
    with make(run=run) as exporter:
        exporter.observe_step(1, 1.0)
assert signal.getsignal(signal.SIGTERM) is own
assert sys.excepthook is before[1]
assert signal.set_wakeup_fd(-1) == -1
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with make() as exporter:
    pass
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert signal.set_wakeup_fd(-1) == -1
for thread in threading.enumerate():
    if "signals" in thread.name: thread.join()
""")

    assert script.end() == (0, "")


def test_exporters_one_after_the_other_around_a_handler_of_the_trainers(start: StartScript):
    """The trainer's handler calls the one before it, which was the exporter's."""
    script = start("""
first = make()
before = signal.getsignal(signal.SIGTERM)
def chained(*arguments):
    tell("chained")
    before(*arguments)
signal.signal(signal.SIGTERM, chained)
first.close()
second = make(run="s")
second.observe_step(1, 1.0)
tell("ready")
while True:
    time.sleep(60)
""")
    script.wait_for("ready")
    script.process.terminate()

    assert script.end() == (-TERM, "")
    assert read_receipt(script.folder / "s")["status"] == "terminated"


def test_closing_in_another_thread_leaves_no_signal_bell_behind(start: StartScript):
    """A closed file's number is given to the next file: no signal's number may be written there."""
    script = start("""
exporter = make()
closing = threading.Thread(target=exporter.close)
closing.start()
closing.join()
files = [open(os.path.join(sys.argv[2], f"file-{n}"), "wb+", buffering=0) for n in range(16)]
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.1)
assert not any(os.fstat(file.fileno()).st_size for file in files)
with make(run="s") as second:
    second.observe_step(1, 1.0)
    tell("ready")
    time.sleep(600)
""")
    script.wait_for("ready")
    script.process.terminate()

    assert script.end() == (-TERM, "")
    assert read_receipt(script.folder / "s")["status"] == "terminated"
