"""An HTTP client that shows and sends every byte: what a library would hide or refuse to do."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=TIMEOUT_S)


def get(path: str, *, method: str = "GET", **headers: str) -> bytes:
    fields = {"Host": "test", **{name.replace("_", "-"): v for name, v in headers.items()}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {v}" for name, v in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_answer(sock: socket.socket) -> Answer:
    """All that comes until the server closes; ConnectionError if that is no answer."""
    data = bytearray()
    while chunk := sock.recv(65536):
        data += chunk
    if not data:
        raise ConnectionError("closed without an answer")
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    version, status, _ = status_line.split(" ", 2)
    assert version == "HTTP/1.1"
    pairs = [line.split(": ", 1) for line in lines]
    return Answer(int(status), {name.lower(): value for name, value in pairs}, body)


def exchange(port: int, request: bytes, host: str = "127.0.0.1") -> Answer:
    with contextlib.closing(connect(port, host)) as sock:
        sock.sendall(request)
        return read_answer(sock)


def is_closed_by_server(sock: socket.socket) -> bool:
    """Whether it ends, without an answer, before the client's own timeout."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def eventually(condition: Callable[[], bool], deadline_s: float = TIMEOUT_S) -> bool:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
