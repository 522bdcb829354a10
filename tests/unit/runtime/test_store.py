"""The connection to a real c10d store."""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from health_exporter.runtime.store import GuardedStore, JobStore, StoreGoneError
from tests.unit.export.raw_http import eventually

distributed = pytest.importorskip("torch.distributed")


@pytest.fixture
def server() -> Any:
    return _serve()


def _serve(port: int = 0) -> Any:
    return distributed.TCPStore(
        "127.0.0.1", port, None, True, datetime.timedelta(seconds=5), wait_for_workers=False
    )


def connect(port: int, prefix: str = "health_exporter/run/0") -> GuardedStore | None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return JobStore(prefix, environ).connect(may_import=True)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as sock:  # bound, so that nobody else gets it, but not listening
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def test_what_is_set_can_be_read_from_another_connection(server):
    one, two = connect(server.port), connect(server.port)
    assert one is not None
    assert two is not None
    one.set("1", b"beat")
    one.append("roster", b"1,")
    two.append("roster", b"2,")
    assert eventually(lambda: set(two.get("roster").split(b",")) == {b"1", b"2", b""})
    assert two.multi_get(["1"]) == [b"beat"]


def test_runs_and_attempts_do_not_see_each_other(server):
    one, two = connect(server.port), connect(server.port, "health_exporter/run/1")
    assert one is not None
    assert two is not None
    one.set("1", b"first")
    two.set("1", b"second")
    assert one.get("1") == b"first"


def test_where_nobody_listens_yet_there_is_no_store_and_no_noise(closed_port, capfd):
    assert connect(closed_port) is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("port", ["", "none", "-1"])
def test_without_a_port_there_is_no_store(port: str):
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    assert JobStore("p", environ).connect(may_import=True) is None


def test_a_store_is_expected_where_a_rendezvous_was_announced():
    assert JobStore("p", {"MASTER_ADDR": "a", "MASTER_PORT": "1"}).expected()


def test_a_server_that_has_left_is_found_before_torch_writes_a_stack_trace(capfd):
    server = _serve()
    store = connect(server.port)
    assert store is not None
    store.set("1", b"beat")
    del server
    with pytest.raises(StoreGoneError):
        store.set("1", b"beat")
    captured = capfd.readouterr()
    assert "sendBytes" not in captured.err
    assert "recvBytes" not in captured.err


def test_the_interpreter_runs_while_a_call_waits(server):
    store = connect(server.port)
    assert store is not None
    waiting = threading.Thread(target=lambda: store.get("later"), daemon=True)
    waiting.start()
    turns = 0
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        turns += 1
    assert waiting.is_alive()
    assert turns > 1000
    other = connect(server.port)
    assert other is not None
    other.set("later", b"now")
    waiting.join(5)
    assert not waiting.is_alive()


def test_the_store_of_the_process_group_is_found_without_an_environment(tmp_path):
    server = _serve()
    distributed.init_process_group("gloo", store=server, rank=0, world_size=1)
    try:
        store = JobStore("p", {}).connect(may_import=False)
        assert store is not None
        store.set("1", b"beat")
        assert distributed.PrefixStore("p", server).get("1") == b"beat"
    finally:
        distributed.destroy_process_group()


def test_a_process_group_without_a_tcp_store_has_none_to_share(tmp_path):
    files = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=files, rank=0, world_size=1)
    try:
        assert JobStore("p", {}).connect(may_import=False) is None
    finally:
        distributed.destroy_process_group()


def test_a_default_socket_timeout_does_not_reach_torchs_connection(server, monkeypatch):
    monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 1.0)
    store = connect(server.port)
    assert store is not None
    store.set("1", b"beat")
    assert store.get("1") == b"beat"


def test_a_unix_socket_that_another_thread_makes_meanwhile_is_passed_over(server, monkeypatch):
    made: list[socket.socket] = []
    client = distributed.TCPStore

    def make(*arguments: Any, **more: Any) -> Any:
        made.extend(socket.socketpair())
        return client(*arguments, **more)

    monkeypatch.setattr(distributed, "TCPStore", make)
    store = connect(server.port)
    for end in made:
        end.close()

    assert store is not None
    store.set("1", b"beat")
    assert store.get("1") == b"beat"
