from __future__ import annotations

import contextlib
import gzip
import os
import socket
import threading
import time

import pytest

from health_exporter.errors import EndpointError
from health_exporter.export import endpoint as endpoint_module
from health_exporter.export.endpoint import Endpoint, Limits, Request, Response
from tests.unit.export.raw_http import (
    connect,
    eventually,
    exchange,
    get,
    is_closed_by_server,
    read_answer,
)
from tests.unit.export.running import Gate, Serve, connection_threads, is_listening, ok, open_files

# Start and end


def test_it_serves_its_routes_on_the_port_that_it_reports(serve: Serve):
    endpoint = serve()

    answer = exchange(endpoint.port, get("/ok"))

    assert (answer.status, answer.body) == (200, b"ok\n")
    assert endpoint.addresses == ("127.0.0.1",)
    assert endpoint.url("/ok") == f"http://127.0.0.1:{endpoint.port}/ok"


def test_it_serves_ipv6_and_ipv4_by_default(serve: Serve):
    endpoint = serve(address="")
    if endpoint.addresses != ("::",):
        pytest.skip("the machine has no IPv6")

    assert exchange(endpoint.port, get("/ok"), host="::1").status == 200
    assert exchange(endpoint.port, get("/ok"), host="127.0.0.1").status == 200
    assert endpoint.url() == f"http://127.0.0.1:{endpoint.port}/"


def test_the_url_of_an_ipv6_address_has_brackets():
    assert Endpoint({}, address="::1", port=9).url("/x") == "http://[::1]:9/x"


def test_a_taken_port_is_skipped_and_counted(serve: Serve):
    first = serve()

    second = serve(port=first.port)

    assert second.skipped_ports == second.port - first.port >= 1
    assert first.skipped_ports == 0


def test_a_taken_port_without_a_span_is_an_error_after_which_it_can_start(serve: Serve):
    first = serve()
    second = Endpoint({"/ok": ok}, address="127.0.0.1", port=first.port, port_span=1)

    with pytest.raises(EndpointError, match=str(first.port)):
        second.start()
    first.close()
    with second:
        assert exchange(second.port, get("/ok")).status == 200


@pytest.mark.parametrize("arguments", [{"port": -1}, {"port": 65536}, {"port_span": 0}])
def test_a_wrong_argument_is_a_value_error(arguments: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Endpoint({}, **arguments)  # type: ignore[arg-type]


def test_a_limit_is_above_zero():
    with pytest.raises(ValueError, match="request_timeout_s"):
        Limits(request_timeout_s=0)


def test_it_starts_once(serve: Serve):
    endpoint = serve()

    with pytest.raises(RuntimeError):
        endpoint.start()


def test_without_a_thread_to_be_had_it_is_an_error_and_the_port_is_free(
    monkeypatch: pytest.MonkeyPatch,
):
    endpoint = Endpoint({"/ok": ok}, address="127.0.0.1")
    with monkeypatch.context() as patched:

        def no_thread(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", no_thread)
        before = open_files()
        with pytest.raises(EndpointError, match="can't start new thread"):
            endpoint.start()
        assert open_files() == before

    with endpoint:
        assert exchange(endpoint.port, get("/ok")).status == 200


def test_close_frees_the_port_at_once_though_connections_linger(serve: Serve):
    first = serve()
    idle = connect(first.port)
    exchange(first.port, get("/ok"))

    first.close()
    second = serve(port=first.port, port_span=1)

    assert second.port == first.port
    assert is_closed_by_server(idle)
    idle.close()


def test_close_is_idempotent_and_leaves_nothing_behind(serve: Serve):
    files, threads = open_files(), threading.active_count()
    endpoint = serve()
    with contextlib.closing(connect(endpoint.port)), contextlib.closing(connect(endpoint.port)):
        exchange(endpoint.port, get("/ok"))
        endpoint.close()
        endpoint.close()

    assert threading.active_count() == threads
    assert open_files() == files


def test_close_before_start_does_nothing():
    Endpoint({}).close()


def test_close_is_quick_with_silent_and_slow_clients(serve: Serve):
    endpoint = serve()
    clients = [connect(endpoint.port) for _ in range(20)]
    for sock in clients[:10]:
        sock.sendall(b"GET")
    assert eventually(lambda: connection_threads() == 10)

    began = time.monotonic()
    endpoint.close()

    assert time.monotonic() - began < 0.5  # half of the grace for answers, which nobody is owed
    for sock in clients:
        assert is_closed_by_server(sock)
        sock.close()


def test_close_lets_an_answer_under_way_finish(serve: Serve, gate: Gate):
    endpoint = serve(routes={"/gate": gate}, limits=Limits(close_grace_s=20))
    with contextlib.closing(connect(endpoint.port)) as sock:
        sock.sendall(get("/gate"))
        gate.entered.acquire()
        closer = threading.Thread(target=endpoint.close)
        closer.start()
        assert eventually(lambda: not is_listening(endpoint.port))
        gate.open.set()

        assert read_answer(sock).body == b"through the gate"
        closer.join(20)
        assert not closer.is_alive()


def test_close_does_not_wait_for_a_handler_for_ever(serve: Serve, gate: Gate):
    endpoint = serve(routes={"/gate": gate}, limits=Limits(close_grace_s=0.05))
    with contextlib.closing(connect(endpoint.port)) as sock:
        sock.sendall(get("/gate"))
        gate.entered.acquire()

        began = time.monotonic()
        endpoint.close()

        assert time.monotonic() - began < 5
        assert is_closed_by_server(sock)


def test_a_handler_may_close_the_endpoint(serve: Serve):
    endpoint: Endpoint

    def stop(request: Request) -> Response:
        endpoint.close()
        return Response(body=b"closed")

    endpoint = serve(routes={"/stop": stop})

    assert exchange(endpoint.port, get("/stop")).body == b"closed"


@pytest.mark.timeout(20)
def test_a_signal_handler_may_close_it_while_it_is_being_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    endpoint = serve()
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        endpoint.close()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    endpoint.close()

    assert not is_listening(endpoint.port)


# Requests and answers


def test_the_query_does_not_matter_to_routing(serve: Serve):
    seen: list[Request] = []

    def look(request: Request) -> Response:
        seen.append(request)
        return Response()

    endpoint = serve(routes={"/look": look})

    assert exchange(endpoint.port, get("/look?name[]=up", X_Probe="1")).status == 200
    assert (seen[0].path, seen[0].query, seen[0].client) == ("/look", "name[]=up", "127.0.0.1")
    assert seen[0].headers["x-probe"] == "1"


def test_an_ipv4_client_of_a_dual_stack_socket_has_an_ipv4_address(serve: Serve):
    endpoint = serve(address="", routes={"/me": lambda r: Response(body=r.client.encode())})

    assert exchange(endpoint.port, get("/me")).body == b"127.0.0.1"


def test_an_unknown_path_is_404(serve: Serve):
    assert exchange(serve().port, get("/okay")).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW", "get"])
@pytest.mark.parametrize("path", ["/ok", "/unknown"])
def test_any_other_method_is_405(serve: Serve, method: str, path: str):
    answer = exchange(serve().port, get(path, method=method))

    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_has_the_headers_of_get_and_no_body(serve: Serve):
    endpoint = serve(
        routes={"/big": lambda r: Response(body=b"a" * 9999)}, unix_time=lambda: 1577836800.0
    )

    for encoding in ("gzip", "identity"):
        full = exchange(endpoint.port, get("/big", Accept_Encoding=encoding))
        head = exchange(endpoint.port, get("/big", method="HEAD", Accept_Encoding=encoding))
        assert head.headers == full.headers
        assert head.status == 200
        assert head.body == b""


def test_a_response_is_complete_closed_and_says_nothing_of_the_server(serve: Serve):
    answer = exchange(serve().port, get("/ok"))

    assert answer.headers["content-length"] == "3"
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


def test_gzip_is_negotiated(serve: Serve):
    body = b"training_health_loss 1.0\n" * 400
    endpoint = serve(routes={"/big": lambda r: Response(body=body)})

    compressed = exchange(endpoint.port, get("/big", Accept_Encoding="gzip"))
    refused = exchange(endpoint.port, get("/big", Accept_Encoding="gzip;q=0"))

    assert gzip.decompress(compressed.body) == body
    assert compressed.headers["vary"] == refused.headers["vary"] == "Accept-Encoding"
    assert refused.body == body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /ok\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /ok HTTP/1.1\r\n\r\n",
        # Known without waiting for an empty line: TLS on a plain port.
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_a_malformed_request_is_400(serve: Serve, request_bytes: bytes):
    began = time.monotonic()
    answer = exchange(serve().port, request_bytes)

    assert answer.status == 400
    assert time.monotonic() - began < 4  # not at the request's deadline


def test_a_request_that_ends_early_is_400(serve: Serve):
    with contextlib.closing(connect(serve().port)) as sock:
        sock.sendall(b"GET /ok HTTP/1.0\r\n")
        sock.shutdown(socket.SHUT_WR)

        assert read_answer(sock).status == 400


def test_a_half_closed_client_gets_its_answer(serve: Serve):
    with contextlib.closing(connect(serve().port)) as sock:
        sock.sendall(get("/ok"))
        sock.shutdown(socket.SHUT_WR)

        assert read_answer(sock).body == b"ok\n"


def test_a_request_may_come_in_pieces(serve: Serve):
    request = get("/ok")
    endpoint = serve()
    for cut in range(1, len(request)):
        with contextlib.closing(connect(endpoint.port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(request[:cut])
            sock.sendall(request[cut:])
            assert read_answer(sock).body == b"ok\n"


@pytest.mark.parametrize("size", [20_000, 3_000_000])
def test_a_head_that_is_too_long_is_431_and_the_client_hears_it(serve: Serve, size: int):
    endpoint = serve()
    cut_off = False
    with contextlib.closing(connect(endpoint.port)) as sock:
        try:
            sock.sendall(b"GET /ok HTTP/1.1\r\nX: " + b"a" * size)
            assert read_answer(sock).status == 431
        except ConnectionError:
            cut_off = True

    assert not cut_off or size > 1 << 20  # far beyond the limit nothing is promised
    assert eventually(lambda: connection_threads() == 0)


def test_a_head_of_the_greatest_length_is_served(serve: Serve):
    endpoint = serve(limits=Limits(max_request_bytes=400))
    fill = 400 - len(get("/ok", X=""))

    assert exchange(endpoint.port, get("/ok", X="a" * fill)).status == 200
    assert exchange(endpoint.port, get("/ok", X="a" * (fill + 1))).status == 431


def test_a_refused_body_does_not_reset_the_answer(serve: Serve):
    body = b"a" * 500_000
    request = get("/ok", method="POST", Content_Length=str(len(body)))
    with contextlib.closing(connect(serve().port)) as sock:
        sock.sendall(request)
        sock.sendall(body)
        # Had it been closed with bytes unread, this would be a reset.
        assert read_answer(sock).status == 405


def test_a_refused_client_sees_the_end_of_the_answer_at_once(serve: Serve):
    endpoint = serve()
    durations_s = []
    for _ in range(5):
        began = time.monotonic()
        exchange(endpoint.port, get("/ok", method="POST", Content_Length="9"))
        durations_s.append(time.monotonic() - began)

    assert min(durations_s) < 0.5  # not after the second for which the rest is read


# Handlers that fail


def test_a_handler_that_raises_is_500_for_that_request_only(
    serve: Serve, caplog: pytest.LogCaptureFixture
):
    def broken(request: Request) -> Response:
        raise ValueError("secret detail")

    endpoint = serve(routes={"/broken": broken})

    answers = [exchange(endpoint.port, get("/broken")) for _ in range(3)]

    assert [answer.status for answer in answers] == [500] * 3
    assert all(b"secret" not in answer.body for answer in answers)
    assert exchange(endpoint.port, get("/ok")).status == 200
    (record,) = caplog.records
    assert "/broken" in record.message
    assert record.exc_info is not None


def test_each_route_complains_for_itself(serve: Serve, caplog: pytest.LogCaptureFixture):
    def broken(request: Request) -> Response:
        raise ValueError(request.path)

    endpoint = serve(routes={"/a": broken, "/b": broken})

    for path in ("/a", "/b", "/a", "/b"):
        exchange(endpoint.port, get(path))

    assert len(caplog.records) == 2


@pytest.mark.parametrize("returned", [None, "text", (200, b"")])
def test_a_handler_that_returns_no_response_is_500(serve: Serve, returned: object):
    endpoint = serve(routes={"/odd": lambda request: returned})

    assert exchange(endpoint.port, get("/odd")).status == 500


def test_a_guard_answers_first(serve: Serve):
    def guard(request: Request) -> Response | None:
        return None if "authorization" in request.headers else Response(status=401)

    endpoint = serve(guard=guard)

    assert exchange(endpoint.port, get("/ok")).status == 401
    assert exchange(endpoint.port, get("/unknown")).status == 401
    assert exchange(endpoint.port, get("/ok", Authorization="x")).status == 200


def test_a_guard_that_raises_lets_nobody_in(serve: Serve, caplog: pytest.LogCaptureFixture):
    def guard(request: Request) -> Response | None:
        raise KeyError("users")

    assert exchange(serve(guard=guard).port, get("/ok")).status == 500
    assert len(caplog.records) == 1


# Forks


def test_importing_registers_nothing(monkeypatch: pytest.MonkeyPatch):
    import importlib

    from health_exporter.export import fork

    hooks: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hook: hooks.append(hook))
    monkeypatch.setattr(fork, "_hooked", False)
    importlib.reload(endpoint_module)
    assert hooks == []

    for _ in range(2):
        with Endpoint({}, address="127.0.0.1"):
            pass

    assert len(hooks) == 1
