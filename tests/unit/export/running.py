"""What tests of a running endpoint serve, and what they see of it from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from health_exporter.export.endpoint import Endpoint, Request, Response
from tests.unit.export.raw_http import connect

Serve = Callable[..., Endpoint]


class Gate:
    """A handler that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, request: Request) -> Response:
        self.entered.release()
        self.open.wait(20)
        return Response(body=b"through the gate")


def ok(request: Request) -> Response:
    return Response(body=b"ok\n")


def connection_threads() -> int:
    return sum(thread.name == "endpoint-connection" for thread in threading.enumerate())


def is_listening(port: int) -> bool:
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        return True  # it was still there, if only just
    return True


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
