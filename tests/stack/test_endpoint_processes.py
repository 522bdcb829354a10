"""The endpoint of a process that forks, is killed, runs out of something, or ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from health_exporter.export.endpoint import Endpoint, Request, Response
from tests.unit.export.raw_http import (
    connect,
    eventually,
    exchange,
    get,
    is_closed_by_server,
    read_answer,
)

REPOSITORY = Path(__file__).resolve().parents[2]

# Every trainer below begins like this; it tells its port, and each line after that is an event.
PREAMBLE = """
import multiprocessing, os, resource, signal, socket, subprocess, sys, threading, time
from health_exporter.export.endpoint import Endpoint, Limits, Request, Response

def tell(*words):
    print(*words, flush=True)

def wait(request):
    tell("in the handler")
    time.sleep(600)

endpoint = Endpoint(
    {"/ok": lambda request: Response(body=b"ok"), "/wait": wait},
    address="127.0.0.1",
)
endpoint.start()
tell(endpoint.port)
"""


class Trainer:
    """A process that runs `script` behind the preamble."""

    def __init__(self, script: str) -> None:
        # Python 3.12 and later warn of any fork while the endpoint's threads run.
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + script]
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its forked children end with it after the test
        )
        self.port = int(self.next_line())

    def next_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the trainer ended: {self.process.communicate(timeout=20)[1]}")
        return line.strip()

    def go_on(self) -> None:
        """It waits for a line of its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> tuple[int, str]:
        """Exit status and standard error."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture
def trainer() -> Iterator[Callable[[str], Trainer]]:
    started: list[Trainer] = []

    def start(script: str) -> Trainer:
        started.append(Trainer(script))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
        for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
            if stream is not None:
                stream.close()


def ok(request: Request) -> Response:
    return Response(body=b"next attempt")


CHILDREN = {
    "os.fork": """
if os.fork() == 0:
    tell(os.getpid())
    time.sleep(600)
""",
    "multiprocessing": """
def work():
    tell(os.getpid())
    time.sleep(600)

multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
""",
    "exec": """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell(child.pid)
""",
    "fork of a child": """
if os.fork() == 0:
    if os.fork() == 0:
        tell(os.getpid())
    time.sleep(600)
""",
}


@pytest.mark.parametrize("child", CHILDREN)
def test_after_kill_9_the_port_is_free_though_children_live_on(
    trainer: Callable[[str], Trainer], child: str
):
    first = trainer(CHILDREN[child] + "time.sleep(600)")
    worker = int(first.next_line())
    with contextlib.closing(connect(first.port)):  # an open connection, as of a scraper
        assert exchange(first.port, get("/ok")).status == 200
        first.kill()

        with Endpoint({"/ok": ok}, address="", port=first.port, port_span=1) as second:
            assert exchange(second.port, get("/ok")).body == b"next attempt"
            os.kill(worker, 0)  # it does live


def test_a_child_holds_no_connection_of_its_parent(trainer: Callable[[str], Trainer]):
    """Else a client would wait for the answer of a process that is dead."""
    first = trainer("""
sys.stdin.readline()
if os.fork() == 0:
    tell("forked")
time.sleep(600)
""")
    with contextlib.ExitStack() as held:
        silent = held.enter_context(contextlib.closing(connect(first.port)))
        waiting = held.enter_context(contextlib.closing(connect(first.port)))
        waiting.sendall(get("/wait"))
        assert first.next_line() == "in the handler"
        first.go_on()
        assert first.next_line() == "forked"
        first.kill()

        assert is_closed_by_server(waiting)
        assert is_closed_by_server(silent)


def test_a_child_cannot_close_its_parents_endpoint(trainer: Callable[[str], Trainer]):
    first = trainer("""
if os.fork() == 0:
    endpoint.close()
    endpoint.close()
    tell("closed", sum("socket" in os.readlink(f"/proc/self/fd/{fd}") for fd in
                       os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")))
    os._exit(0)
os.wait()
tell("waited")
time.sleep(600)
""")

    assert first.next_line() == "closed 0"
    assert first.next_line() == "waited"
    assert exchange(first.port, get("/ok")).body == b"ok"


def test_a_fork_disturbs_no_client_of_the_parent(trainer: Callable[[str], Trainer]):
    first = trainer("""
def slow(request):
    tell("in the handler")
    go_on.wait()
    return Response(body=b"done")

go_on = threading.Event()
busy = Endpoint({"/slow": slow, "/ok": slow}, address="127.0.0.1")
busy.start()
tell(busy.port)
sys.stdin.readline()
if os.fork() == 0:
    time.sleep(600)
go_on.set()
time.sleep(600)
""")
    port = int(first.next_line())
    with contextlib.ExitStack() as held:
        silent = held.enter_context(contextlib.closing(connect(port)))
        waiting = held.enter_context(contextlib.closing(connect(port)))
        waiting.sendall(get("/slow"))
        assert first.next_line() == "in the handler"
        first.go_on()

        assert read_answer(waiting).body == b"done"
        silent.sendall(get("/ok"))
        assert read_answer(silent).body == b"done"


def test_a_child_waits_for_no_lock_that_was_held_at_the_fork(trainer: Callable[[str], Trainer]):
    first = trainer("""
from health_exporter.export import fork

def hold():
    with endpoint._lock, endpoint._connections._changed, fork._lock:
        held.set()
        time.sleep(600)

held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
if os.fork() == 0:
    endpoint.close()
    endpoint._connections.evict_one()  # what the thread of a handler that forks may still do
    with Endpoint({}, address="127.0.0.1"):
        tell("well")
    os._exit(0)
time.sleep(600)
""")

    assert first.next_line() == "well"


def test_a_child_may_have_an_endpoint_of_its_own(trainer: Callable[[str], Trainer]):
    first = trainer("""
if os.fork() == 0:
    own = Endpoint({"/ok": lambda request: Response(body=b"child")}, address="127.0.0.1")
    own.start()
    tell(own.port)
    if os.fork() == 0:
        tell("grandchild")
time.sleep(600)
""")
    port = int(first.next_line())
    assert first.next_line() == "grandchild"

    assert exchange(port, get("/ok")).body == b"child"
    assert exchange(first.port, get("/ok")).body == b"ok"


def test_forks_while_it_is_busy_never_hang(trainer: Callable[[str], Trainer]):
    """Whatever lock another thread holds at that moment, the child must not wait for it."""
    first = trainer("""
def scrape():
    while True:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as sock:
            sock.sendall(b"GET /ok HTTP/1.0\\r\\n\\r\\n")
            sock.recv(100)

for _ in range(3):
    threading.Thread(target=scrape, daemon=True).start()
sys.setswitchinterval(1e-5)
for _ in range(200):
    child = os.fork()
    if child == 0:
        endpoint.close()
        os._exit(7)
    deadline = time.monotonic() + 20
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            sys.exit("a child hangs")
        time.sleep(0.0005)
    if os.waitstatus_to_exitcode(status) != 7:
        sys.exit(f"a child ended with {status}")
tell("all forks well")
os._exit(0)
""")

    assert first.next_line() == "all forks well"


def test_close_frees_the_port_though_a_child_without_hooks_holds_a_copy(
    trainer: Callable[[str], Trainer],
):
    """A fork by native code runs no hook of Python's."""
    first = trainer("""
import ctypes
if ctypes.PyDLL(None).fork() == 0:
    ctypes.PyDLL(None).sleep(600)
endpoint.close()
tell("closed")
time.sleep(600)
""")
    assert first.next_line() == "closed"

    with Endpoint({"/ok": ok}, address="127.0.0.1", port=first.port, port_span=1) as second:
        assert exchange(second.port, get("/ok")).body == b"next attempt"


def test_the_end_of_the_program_waits_for_no_request(trainer: Callable[[str], Trainer]):
    first = trainer("sys.stdin.readline()")
    with contextlib.ExitStack() as held:
        for request in (b"", b"GET", get("/wait")):
            sock = held.enter_context(contextlib.closing(connect(first.port)))
            sock.sendall(request)
        assert first.next_line() == "in the handler"

        began = time.monotonic()
        assert first.end() == (0, "")  # closing its standard input lets it go on

        assert time.monotonic() - began < 10


def test_a_client_that_hangs_up_does_not_kill_a_process_that_restored_sigpipe(
    trainer: Callable[[str], Trainer],
):
    first = trainer("""
def huge(request):
    tell("asked")
    time.sleep(0.2)  # so that the reset is there before the answer
    return Response(body=b"x" * (8 << 20))

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
fragile = Endpoint({"/huge": huge, "/ok": huge}, address="127.0.0.1")
fragile.start()
tell(fragile.port)
sys.stdin.readline()
""")
    port = int(first.next_line())
    for _ in range(3):
        with contextlib.closing(connect(port)) as sock:
            sock.sendall(get("/huge"))
            assert first.next_line() == "asked"
    with contextlib.closing(connect(port)) as sock:
        sock.sendall(get("/ok"))
        assert first.next_line() == "asked"
        assert read_answer(sock).status == 200

    assert first.end() == (0, "")


def test_without_file_descriptors_it_rests_and_recovers(trainer: Callable[[str], Trainer]):
    first = trainer("""
held = []
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
try:
    while True:
        held.append(os.dup(0))
except OSError:
    tell("none left")
sys.stdin.readline()
began = resource.getrusage(resource.RUSAGE_SELF)
time.sleep(1)
ended = resource.getrusage(resource.RUSAGE_SELF)
tell(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
for fd in held:
    os.close(fd)
time.sleep(600)
""")
    assert first.next_line() == "none left"
    with contextlib.closing(connect(first.port)) as waiting:
        waiting.sendall(get("/ok"))
        first.go_on()

        assert float(first.next_line()) < 0.3  # a busy loop would have taken all of 1 s
        assert read_answer(waiting).body == b"ok"
    first.kill()
    assert first.end()[1].count("cannot accept connections") == 1


def test_without_file_descriptors_a_silent_client_gives_its_own(trainer: Callable[[str], Trainer]):
    first = trainer("""
patient = Endpoint(
    {"/ok": lambda request: Response(body=b"ok")},
    address="127.0.0.1",
    limits=Limits(request_timeout_s=600),
)
patient.start()
tell(patient.port)
sys.stdin.readline()
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    tell("none left")
time.sleep(600)
""")
    port = int(first.next_line())
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(contextlib.closing(connect(port))) for _ in range(3)]
        assert exchange(port, get("/ok")).status == 200
        first.go_on()
        assert first.next_line() == "none left"

        assert exchange(port, get("/ok")).body == b"ok"
        assert is_closed_by_server(silent[0])


def test_a_restart_on_the_same_port_binds_at_once(trainer: Callable[[str], Trainer]):
    first = trainer("sys.stdin.readline()\nendpoint.close()\n")
    assert exchange(first.port, get("/ok")).status == 200  # leaves a connection in TIME_WAIT
    assert first.end()[0] == 0

    with Endpoint({"/ok": ok}, address="127.0.0.1", port=first.port, port_span=1) as second:
        assert eventually(lambda: exchange(second.port, get("/ok")).status == 200)
