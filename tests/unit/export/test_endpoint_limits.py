from __future__ import annotations

import contextlib
import ctypes
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from health_exporter.export.endpoint import Limits, Response
from tests.unit.export.raw_http import (
    connect,
    eventually,
    exchange,
    get,
    is_closed_by_server,
    read_answer,
)
from tests.unit.export.running import Gate, Serve, connection_threads, open_files

# Small enough for a test, and far above what an answer takes on a busy machine.
SHORT_S = 0.3
# Above what fits into the socket buffers of both sides, so that sending must wait for the client.
HUGE = b"x" * (64 << 20)


# Clients that are slow, silent or many


@pytest.fixture
def many_files() -> Iterator[None]:
    """Most machines allow a process 1,024 open files until it asks for more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("count", [50, 200, 2000])
def test_silent_connections_do_not_delay_a_scrape(serve: Serve, count: int):
    endpoint = serve()
    with contextlib.ExitStack() as held:
        for _ in range(count):
            held.enter_context(contextlib.closing(connect(endpoint.port)))

        assert exchange(endpoint.port, get("/ok")).status == 200
        durations_s = []
        for _ in range(200):
            began = time.perf_counter()
            assert exchange(endpoint.port, get("/ok")).status == 200
            durations_s.append(time.perf_counter() - began)

    p99_ms = 1000 * sorted(durations_s)[197]
    logging.getLogger(__name__).info("%d silent connections: p99 %.2f ms", count, p99_ms)
    assert p99_ms < 250


def test_silent_connections_cost_no_thread(serve: Serve):
    endpoint = serve()
    with contextlib.ExitStack() as held:
        for _ in range(30):
            held.enter_context(contextlib.closing(connect(endpoint.port)))
        exchange(endpoint.port, get("/ok"))

        assert eventually(lambda: connection_threads() == 0)


def test_when_full_the_oldest_silent_connection_makes_way(serve: Serve):
    endpoint = serve(limits=Limits(max_connections=3))
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(contextlib.closing(connect(endpoint.port))) for _ in range(4)]

        assert is_closed_by_server(clients[0])
        clients[1].sendall(get("/ok"))
        assert read_answer(clients[1]).status == 200


def test_when_full_the_oldest_slow_sender_makes_way(serve: Serve):
    endpoint = serve(limits=Limits(max_connections=3))
    with contextlib.ExitStack() as held:
        clients = []
        for number in range(3):
            sock = held.enter_context(contextlib.closing(connect(endpoint.port)))
            sock.sendall(b"GET /ok HT")
            assert eventually(lambda n=number: connection_threads() == n + 1)  # type: ignore[misc]
            clients.append(sock)

        assert exchange(endpoint.port, get("/ok")).status == 200
        assert is_closed_by_server(clients[0])
        clients[2].sendall(b"TP/1.0\r\n\r\n")
        assert read_answer(clients[2]).status == 200


def test_when_full_a_client_that_does_not_read_makes_way(serve: Serve):
    endpoint = serve(
        routes={"/huge": lambda r: Response(body=HUGE)},
        limits=Limits(max_connections=2, response_timeout_s=600),
    )
    with contextlib.ExitStack() as held:
        for number in range(2):
            sock = held.enter_context(contextlib.closing(connect(endpoint.port)))
            sock.sendall(get("/huge"))
            assert eventually(lambda n=number: connection_threads() == n + 1)  # type: ignore[misc]

        assert exchange(endpoint.port, get("/ok")).status == 200


def test_a_request_being_handled_does_not_make_way(serve: Serve, gate: Gate):
    endpoint = serve(routes={"/gate": gate}, limits=Limits(max_connections=2))
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(contextlib.closing(connect(endpoint.port))) for _ in range(2)]
        for sock in clients:
            sock.sendall(get("/gate"))
            gate.entered.acquire()
        waiting = held.enter_context(contextlib.closing(connect(endpoint.port)))
        waiting.sendall(get("/ok"))
        gate.open.set()

        assert [read_answer(sock).body for sock in clients] == [b"through the gate"] * 2
        assert read_answer(waiting).body == b"ok\n"


def test_an_answer_on_its_way_is_not_cut_off_to_make_room(serve: Serve):
    body = b"x" * (16 << 20)
    endpoint = serve(
        routes={"/large": lambda r: Response(body=body)}, limits=Limits(max_connections=1)
    )
    with contextlib.ExitStack() as held:
        reader = held.enter_context(contextlib.closing(connect(endpoint.port)))
        reader.sendall(get("/large"))
        assert reader.recv(1, socket.MSG_PEEK)
        held.enter_context(contextlib.closing(connect(endpoint.port)))

        assert len(read_answer(reader).body) == len(body)


def test_the_threads_are_bounded_however_many_speak(serve: Serve):
    endpoint = serve(limits=Limits(max_connections=8))
    seen = []
    with contextlib.ExitStack() as held:
        for number in range(100):
            sock = held.enter_context(contextlib.closing(connect(endpoint.port)))
            sock.sendall(b"G")
            # Until there are as many as there may be, each has to be there before the next comes.
            expected = min(number + 1, 8)
            assert eventually(lambda n=expected: number >= 8 or connection_threads() == n)  # type: ignore[misc]  # noqa: B023
            seen.append(connection_threads())
        assert exchange(endpoint.port, get("/ok")).status == 200

    assert max(seen) == 8


def test_a_silent_client_is_dropped_at_the_deadline(serve: Serve):
    endpoint = serve(limits=Limits(request_timeout_s=SHORT_S))
    with contextlib.closing(connect(endpoint.port)) as sock:
        assert is_closed_by_server(sock)


def test_a_request_that_trickles_in_is_dropped_at_an_absolute_deadline(serve: Serve):
    endpoint = serve(limits=Limits(request_timeout_s=SHORT_S))
    began = time.monotonic()
    with contextlib.closing(connect(endpoint.port)) as sock, contextlib.suppress(ConnectionError):
        sock.settimeout(SHORT_S / 10)
        while time.monotonic() - began < 20:
            sock.sendall(b"G")
            with contextlib.suppress(TimeoutError):
                if sock.recv(1) == b"":
                    break

    assert SHORT_S <= time.monotonic() - began < 10 * SHORT_S


@pytest.mark.parametrize("trickle", [0, 1])
def test_a_client_that_does_not_read_is_dropped_at_an_absolute_deadline(serve: Serve, trickle: int):
    endpoint = serve(
        routes={"/huge": lambda r: Response(body=HUGE)}, limits=Limits(response_timeout_s=SHORT_S)
    )
    with contextlib.closing(connect(endpoint.port)) as sock:
        sock.sendall(get("/huge"))
        assert eventually(lambda: connection_threads() == 1)
        began = time.monotonic()

        def dropped() -> bool:
            if trickle:
                sock.recv(65536)
            return connection_threads() == 0

        assert eventually(dropped, deadline_s=10 * SHORT_S)
        assert time.monotonic() - began > SHORT_S / 2


@pytest.mark.parametrize("stale", [False, True])
def test_a_request_that_came_while_the_interpreter_was_held_up_is_served(serve: Serve, stale: bool):
    """Native code may keep the interpreter's lock for longer than any timeout.

    `stale`: the acceptor was already busy with another client when that began.
    """
    endpoint = serve(limits=Limits(request_timeout_s=SHORT_S))
    with_lock_held = ctypes.PyDLL(None)
    request = get("/ok")
    with (
        contextlib.closing(connect(endpoint.port)) as sock,
        contextlib.closing(connect(endpoint.port)) as other,
    ):
        exchange(endpoint.port, get("/ok"))  # accepted after them: so they have been, too

        if stale:
            with_lock_held.send(other.fileno(), b"G", 1, 0)
            with_lock_held.usleep(1000)  # the acceptor is awake, and waits for the lock
        with_lock_held.send(sock.fileno(), request, len(request), 0)
        with_lock_held.usleep(int(2e6 * SHORT_S))

        assert read_answer(sock).status == 200


def test_clients_that_hang_up_are_no_news(
    serve: Serve, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    endpoint = serve(routes={"/huge": lambda r: Response(body=HUGE)})
    caplog.set_level(logging.INFO)
    reset = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # linger for 0 s: close() sends a reset

    for sent in (b"", b"GET", get("/ok"), get("/huge"), get("/huge", method="POST")):
        for abruptly in (False, True):
            with contextlib.closing(connect(endpoint.port)) as sock:
                if abruptly:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                sock.sendall(sent)

    assert eventually(lambda: connection_threads() == 0)
    assert exchange(endpoint.port, get("/ok")).status == 200
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_nothing_is_logged_per_request(serve: Serve, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    endpoint = serve()

    for request in (get("/ok"), get("/no"), get("/ok", method="PUT"), b"nonsense\r\n\r\n"):
        exchange(endpoint.port, request)

    assert caplog.records == []


def test_a_path_cannot_forge_log_lines(serve: Serve, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)

    exchange(serve().port, get("/a%0aCRITICAL:forged"))

    assert any("/a" in message for message in caplog.messages)
    assert not any("\n" in message for message in caplog.messages)


def test_no_thread_and_no_file_is_left_after_all_kinds_of_clients(serve: Serve):
    endpoint = serve(limits=Limits(max_connections=16, request_timeout_s=SHORT_S))
    files = open_files()
    for sent in (b"", b"G", get("/ok"), get("/ok", method="POST", Content_Length="9"), b"\x16"):
        for _ in range(30):
            with contextlib.closing(connect(endpoint.port)) as sock:
                sock.sendall(sent)

    assert eventually(lambda: connection_threads() == 0 and open_files() == files)


def test_without_a_thread_to_be_had_a_client_is_dropped_and_the_next_is_served(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    endpoint = serve()
    files = open_files()
    with monkeypatch.context() as patched, contextlib.closing(connect(endpoint.port)) as sock:

        def no_thread(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", no_thread)
        sock.sendall(get("/ok"))
        assert is_closed_by_server(sock)

    assert exchange(endpoint.port, get("/ok")).status == 200
    assert eventually(lambda: open_files() == files)
    assert len(caplog.records) == 1


# TLS to come


def test_securing_a_connection_holds_up_nobody_else(serve: Serve):
    """A handshake is made in the connection's thread, and only once the client has spoken."""
    threads: list[str] = []
    stalled = threading.Semaphore(0)

    class Wrapped(socket.socket):
        def do_handshake(self) -> None:
            threads.append(threading.current_thread().name)
            if self.recv(1) == b"S":
                stalled.release()
                self.recv(1)  # a handshake that the client does not go on with

    def secure(sock: socket.socket) -> socket.socket:
        wrapped = Wrapped(fileno=sock.detach())
        wrapped.settimeout(20)
        return wrapped

    endpoint = serve(secure=secure, limits=Limits(request_timeout_s=20))
    with contextlib.closing(connect(endpoint.port)) as sock:
        sock.sendall(b"S")
        stalled.acquire()

        assert exchange(endpoint.port, b"!" + get("/ok")).status == 200
        assert set(threads) == {"endpoint-connection"}
        assert endpoint.url().startswith("https://")


def test_a_handshake_has_the_deadline_of_the_request(serve: Serve):
    class Wrapped(socket.socket):
        def do_handshake(self) -> None:
            while True:
                self.recv(1)

    endpoint = serve(
        secure=lambda sock: Wrapped(fileno=sock.detach()), limits=Limits(request_timeout_s=SHORT_S)
    )
    with contextlib.closing(connect(endpoint.port)) as sock:
        sock.sendall(b"S")

        assert is_closed_by_server(sock)


# Cost


def test_it_sleeps_while_nobody_connects(serve: Serve):
    endpoint = serve()
    exchange(endpoint.port, get("/ok"))
    (acceptor,) = (each for each in threading.enumerate() if each.name == "endpoint-acceptor")
    status = Path(f"/proc/self/task/{acceptor.native_id}/status")

    def wake_ups() -> int:
        lines = status.read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    assert eventually(lambda: connection_threads() == 0)
    before = wake_ups()
    threading.Event().wait(1.2)  # the time that is measured; a usual poll is every 0.5 s

    assert wake_ups() - before <= 1
