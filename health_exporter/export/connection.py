"""One client of the endpoint, and the bounded table of all of them."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
from collections.abc import Callable, Iterable

from health_exporter.export.message import can_become_request, head_end

# A trainer that has restored SIGPIPE's default action would be killed by a client that hangs up.
_NO_SIGPIPE: int = getattr(socket, "MSG_NOSIGNAL", 0)
_CHUNK_BYTES = 16384
# What a client sends beside a request for us is read and dropped for this long: closing a socket
# with unread bytes resets the connection, and the client might never see the answer.
_DRAIN_S = 1.0
_DRAIN_BYTES = 1 << 20
# An answer that has been on its way for less is not cut off to make room: a reader needs a few
# milliseconds, over a bad line a second.
_SENDING_PATIENCE_S = 1.0
# While there is no room, how often to look who else could make way. The thread of a connection that
# had to has only to notice.
_LOOK_AGAIN_S = 0.1


class Stage(enum.Enum):
    """How far a connection is."""

    SILENT = enum.auto()  # has sent nothing, and has no thread
    RECEIVING = enum.auto()  # no full request yet; or answered, and nothing is lost with it
    HANDLING = enum.auto()  # in a handler, which nothing can interrupt
    SENDING = enum.auto()


class Connection:
    """An accepted socket. Its own thread does the I/O; the rest is guarded by the table's lock.

    `deadline` (monotonic time) is when the request must be there.
    """

    def __init__(self, sock: socket.socket, client: str, deadline: float) -> None:
        self.sock = sock
        self.client = client
        self.deadline = deadline
        self.enter(Stage.SILENT)

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        self.since = time.monotonic()

    def shut_down(self) -> None:
        """End both directions, which wakes the connection's thread wherever it waits.

        By the socket class's own method: TLS sockets override it with one that must not be called
        from another thread.
        """
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def receive_head(self, max_bytes: int) -> tuple[bytes, bytes]:
        """A request's head and what came behind it.

        Where there is none, because the client hung up, sent more than `max_bytes` or speaks
        another protocol, all that came. Raises OSError at the deadline.
        """
        data = bytearray()
        while len(data) <= max_bytes and can_become_request(data):
            self.allow(self.deadline)
            chunk = self.sock.recv(_CHUNK_BYTES)
            if not chunk:
                break
            # The empty line may have begun in the chunk before.
            searched = max(0, len(data) - 3)
            data += chunk
            end = head_end(data, searched)
            if end is not None:
                return bytes(data[:end]), bytes(data[end:])
        return bytes(data), b""

    def send(self, payload: bytes, deadline: float) -> None:
        """Send all of it; raises OSError at the deadline (monotonic time)."""
        # TLS sockets take no flags.
        flags = (_NO_SIGPIPE,) if type(self.sock) is socket.socket else ()
        left = memoryview(payload)
        while left:
            self.allow(deadline)
            left = left[self.sock.send(left, *flags) :]

    def drain(self) -> None:
        """Say that nothing more will come, and drop what the client still sends, within bounds."""
        socket.socket.shutdown(self.sock, socket.SHUT_WR)
        deadline = time.monotonic() + _DRAIN_S
        left = _DRAIN_BYTES
        while left > 0:
            self.allow(deadline)
            chunk = socket.socket.recv(self.sock, min(left, _CHUNK_BYTES))
            if not chunk:
                return
            left -= len(chunk)

    def allow(self, deadline: float) -> None:
        """Let the next operation on the socket last until the deadline.

        Past it, the operation still succeeds if it need not wait: where the interpreter's lock was
        held for longer than the timeout, the request is there by now.
        """
        self.sock.settimeout(max(0.0, deadline - time.monotonic()))


class ConnectionTable:
    """The connections that are open now, at most `capacity`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._connections: dict[Connection, threading.Thread | None] = {}
        self._open = True
        # Notified when a connection has gone, and when the table closes.
        self._changed = threading.Condition(threading.Lock())

    @property
    def full(self) -> bool:
        return len(self._connections) >= self._capacity

    def add(self, connection: Connection) -> None:
        with self._changed:
            self._connections[connection] = None

    def give_thread(self, connection: Connection, thread: threading.Thread) -> None:
        """From now on `thread` serves it, and removes it."""
        with self._changed:
            self._connections[connection] = thread
            connection.enter(Stage.RECEIVING)

    def enter(self, connection: Connection, stage: Stage) -> None:
        with self._changed:
            connection.enter(stage)

    def wrap(
        self, connection: Connection, wrapper: Callable[[socket.socket], socket.socket]
    ) -> None:
        """Replace the connection's socket; who shuts it down meanwhile waits for the new one."""
        with self._changed:
            connection.sock = wrapper(connection.sock)

    def remove(self, connection: Connection) -> None:
        """Close the connection and make its place free."""
        with self._changed:
            self._close(connection)
            self._changed.notify_all()

    def evict_one(self) -> None:
        """Shut down, of those with a thread, the one that has kept it waiting for longest.

        It has not delivered its request or does not read its answer. Its thread will remove it.
        """
        with self._changed:
            self._evict_one()

    def wait_for_room(self) -> bool:
        """Have connections with threads make way until a place is free. False after `close`.

        While all are in handlers, new ones wait in the kernel's queue.
        """
        with self._changed:
            while self._open and self.full:
                self._evict_one()
                self._changed.wait(_LOOK_AGAIN_S)
            return self._open

    def wait_for_close(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._open, timeout_s)

    def close(self) -> None:
        """Let nothing more in."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def finish(self, grace_s: float) -> None:
        """Drop who is owed no answer, give the others `grace_s`, then drop them, too.

        The calling thread's own connection, if it has one, is left alone.
        """
        caller = threading.current_thread()

        def others(*stages: Stage) -> list[Connection]:
            served = self._connections.items()
            return [
                each for each, thread in served if thread is not caller and each.stage in stages
            ]

        with self._changed:
            for connection in others(Stage.SILENT):
                self._close(connection)
            _shut_down(others(Stage.RECEIVING))
            self._changed.wait_for(lambda: not others(*Stage), grace_s)
            _shut_down(others(*Stage))
            # Those in handlers end when the handler does; nothing can hurry that.
            self._changed.wait_for(lambda: not others(Stage.RECEIVING, Stage.SENDING), grace_s)

    def abandon(self) -> None:
        """In a forked child: close the sockets, but do not shut them down, as the parent goes on.

        Without the lock, as the thread that may hold it is not here to release it.
        """
        self._changed = threading.Condition(threading.Lock())
        self._open = False
        for connection in list(self._connections):
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):  # a reset that nobody is left to hear of
            connection.sock.close()
        self._connections.pop(connection, None)

    def _evict_one(self) -> None:
        sending_since = time.monotonic() - _SENDING_PATIENCE_S
        waiting = [
            each
            for each in self._connections
            if each.stage is Stage.RECEIVING
            or (each.stage is Stage.SENDING and each.since < sending_since)
        ]
        if waiting:
            min(waiting, key=lambda each: each.since).shut_down()


def _shut_down(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.shut_down()
