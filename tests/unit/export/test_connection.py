from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from health_exporter.export.connection import Connection

REQUEST = b"GET /ok HTTP/1.0\r\nA: b\r\n\r\n"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Connection]]:
    """A client and its connection; what is sent at once is received at once, and alone."""
    client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.closing(client), contextlib.closing(server):
        yield client, Connection(server, "", deadline=time.monotonic() + 20)


@pytest.mark.parametrize("cut", range(1, len(REQUEST)))
def test_a_head_is_complete_wherever_it_was_cut(pair: tuple[socket.socket, Connection], cut: int):
    client, connection = pair
    client.send(REQUEST[:cut])
    client.send(REQUEST[cut:] + b"rest")

    assert connection.receive_head(1000) == (REQUEST, b"rest")


def test_a_head_may_come_byte_by_byte(pair: tuple[socket.socket, Connection]):
    client, connection = pair
    for byte in REQUEST:
        client.send(bytes([byte]))

    assert connection.receive_head(1000) == (REQUEST, b"")


def test_past_the_deadline_what_is_there_is_read_and_nothing_is_waited_for(
    pair: tuple[socket.socket, Connection],
):
    client, connection = pair
    connection.deadline = time.monotonic() - 1
    client.send(REQUEST)

    assert connection.receive_head(1000) == (REQUEST, b"")
    with pytest.raises(BlockingIOError):
        connection.receive_head(1000)
