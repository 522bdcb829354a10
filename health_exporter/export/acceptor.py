"""The thread that takes connections in, and gives those that say something a thread of their own.

A silent client costs a file descriptor and no thread. That matters most where Python code keeps the
interpreter's lock busy: whatever must be scheduled then waits for milliseconds, and a crowd of
silent clients before a scrape would cost a thread's start and end each.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable

from health_exporter.export.complaint import Complaints
from health_exporter.export.connection import Connection, ConnectionTable

# Without file descriptors accept() fails at once, and the listening socket stays readable: without
# a pause, that is a busy loop.
_ACCEPT_PAUSE_S = 0.25


class Acceptor:
    """Accepts on `listening` until `bell` becomes readable; `run` is its thread.

    `serve` is called with each connection that has sent something, in a new daemon thread, and
    removes it from `connections`.
    """

    def __init__(
        self,
        listening: tuple[socket.socket, ...],
        *,
        bell: socket.socket,
        connections: ConnectionTable,
        request_timeout_s: float,
        serve: Callable[[Connection], None],
        complaints: Complaints,
    ) -> None:
        self._listening = {sock.fileno(): sock for sock in listening}
        self._bell = bell.fileno()
        self._connections = connections
        self._request_timeout_s = request_timeout_s
        self._serve = serve
        self._complaints = complaints
        self._poll = select.poll()
        self._silent: dict[int, Connection] = {}  # by file descriptor, the oldest first

    def run(self) -> None:
        for fd in (self._bell, *self._listening):
            self._poll.register(fd, select.POLLIN)
        while True:
            asked = time.monotonic()
            ready = {fd for fd, _ in self._poll.poll(self._timeout_ms(asked))}
            if self._bell in ready:
                return
            # Who has spoken goes before who is too late, and before who could take its place.
            for fd in ready & self._silent.keys():
                self._start_thread(self._leave(fd))
            self._drop_late(asked)
            for fd in ready & self._listening.keys():
                if self._make_room():
                    self._accept(self._listening[fd])

    def _timeout_ms(self, now: float) -> int | None:
        """Until the oldest silent connection is too late; with none, for ever."""
        for connection in self._silent.values():
            return max(0, math.ceil(1000 * (connection.deadline - now)))
        return None

    def _drop_late(self, asked: float) -> None:
        """Drop who was too late when the kernel was asked, and had sent nothing by then.

        By now it may have: between the two, the interpreter's lock may have been held for seconds.
        """
        for fd, connection in list(self._silent.items()):
            if connection.deadline > asked:
                return
            self._connections.remove(self._leave(fd))

    def _leave(self, fd: int) -> Connection:
        self._poll.unregister(fd)
        return self._silent.pop(fd)

    def _drop_oldest_silent(self) -> bool:
        for fd in self._silent:
            self._connections.remove(self._leave(fd))
            return True
        return False

    def _make_room(self) -> bool:
        """False if there is none any more: the table was closed."""
        while self._connections.full and self._drop_oldest_silent():
            pass
        return self._connections.wait_for_room()

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # it went away while it waited
        except OSError as error:
            self._complaints.warn("accept", "cannot accept connections", error)
            if not self._drop_oldest_silent():
                self._connections.evict_one()
            self._connections.wait_for_close(_ACCEPT_PAUSE_S)
            return
        deadline = time.monotonic() + self._request_timeout_s
        connection = Connection(sock, str(peer[0]).removeprefix("::ffff:"), deadline)
        self._connections.add(connection)
        self._silent[sock.fileno()] = connection
        self._poll.register(sock, select.POLLIN)

    def _start_thread(self, connection: Connection) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="endpoint-connection", daemon=True
        )
        self._connections.give_thread(connection, thread)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is going away
            if not threading.main_thread().is_alive():
                # Python 3.12 starts no thread while the program ends, just when the last scrape
                # is waited for. One client after the other is served then.
                self._serve(connection)
                return
            self._connections.remove(connection)
            self._complaints.warn("thread", "cannot serve a connection", error)
