"""A small HTTP server for inside a trainer: read-only routes, bounded in every respect.

It lives in a process that is there to train. So it sleeps in the kernel until somebody connects,
gives each connection a thread once it says something, and absolute deadlines, and keeps a bounded
number of them: a client that says nothing loses its place to the next one. It knows nothing of
what it serves.

Connections are not kept alive. With a scrape every few seconds that would save nothing worth
having, while each kept connection would hold a thread, look like a silent client, and be inherited
by every fork.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from health_exporter.errors import EndpointError
from health_exporter.export import fork
from health_exporter.export.acceptor import Acceptor
from health_exporter.export.complaint import Complaints
from health_exporter.export.connection import Connection, ConnectionTable, Stage
from health_exporter.export.listener import Binding, listen
from health_exporter.export.message import (
    MalformedRequestError,
    Request,
    Response,
    parse_request,
    plain,
    render,
)

__all__ = ["Endpoint", "Handler", "Limits", "Request", "Response"]

log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an endpoint may cost; times in seconds.

    - `max_connections`: two Prometheus replicas, a probe and a person are fewer than ten at a time;
      64 leaves room for a port scan and is at most 64 threads.
    - `max_request_bytes`: request line and headers. Prometheus sends about 500 bytes, a few
      thousand with credentials and a proxy's headers.
    - `request_timeout_s`: from the connection, TLS handshake included, to the end of the headers.
      They come in one packet; 5 s let it be lost twice (it is sent again after 1 s and 2 s more).
    - `response_timeout_s`: for all of the answer. Prometheus's scrape timeout is 10 s by default.
    - `close_grace_s`: how long close() lets answers under way finish; who reads takes milliseconds.
    """

    max_connections: int = 64
    max_request_bytes: int = 16384
    request_timeout_s: float = 5.0
    response_timeout_s: float = 10.0
    close_grace_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)!r}")


_DEFAULT_LIMITS = Limits()


class Endpoint:
    """Serves `routes`, a handler for each path, to GET and HEAD.

    `address`, `port` and `port_span` say where: see `listener.listen`. A handler is called in its
    connection's thread, several at a time. If one raises, that request is answered with 500 and
    the cause is logged, at most once a minute per route.

    `secure` wraps a connection's socket for TLS without any I/O (`do_handshake_on_connect=False`);
    the handshake is then made in the connection's thread, within `request_timeout_s`. `guard` sees
    every well-formed request first, and what it answers, unless None, is the answer. `unix_time` is
    the clock of the Date header.

    A forked child holds none of its sockets, and there `close()` does nothing.
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        *,
        address: str = "",
        port: int = 0,
        port_span: int = 64,
        limits: Limits = _DEFAULT_LIMITS,
        secure: Callable[[socket.socket], socket.socket] | None = None,
        guard: Callable[[Request], Response | None] | None = None,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"port must be from 0 to 65535, not {port}")
        if port_span < 1:
            raise ValueError(f"port_span must be at least 1, not {port_span}")
        self._routes = dict(routes)
        self._address = address
        self._first_port = port
        self._port_span = port_span
        self._limits = limits
        self._secure = secure
        self._guard = guard
        self._unix_time = unix_time
        self._complaints = Complaints(log)
        self._connections = ConnectionTable(limits.max_connections)
        self._lock = threading.RLock()  # of start and close; a signal's handler may call close
        self._binding: Binding | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None  # ends the acceptor's sleep
        self._acceptor: threading.Thread | None = None  # while it serves

    @property
    def port(self) -> int:
        """The port it listens on; before start(), the one asked for."""
        return self._binding.port if self._binding else self._first_port

    @property
    def skipped_ports(self) -> int:
        """How many ports, from the one asked for, were taken."""
        return self._binding.skipped if self._binding else 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """The numeric addresses it listens on; `::` is all interfaces, IPv4 and IPv6."""
        return self._binding.addresses if self._binding else ()

    def url(self, path: str = "/") -> str:
        """Where `path` is found from this machine."""
        host = self.addresses[0] if self.addresses else self._address.strip("[]")
        if host in ("", "::", "0.0.0.0"):
            host = "127.0.0.1"  # one of all interfaces
        host = f"[{host.replace('%', '%25')}]" if ":" in host else host
        return f"{'https' if self._secure else 'http'}://{host}:{self.port}{path}"

    def start(self) -> None:
        """Bind in the caller's thread, then serve from daemon threads.

        Raises EndpointError (an OSError), which names address and port, if they cannot be bound;
        it may then be tried again. Raises RuntimeError if it was started before.
        """
        with self._lock:
            if self._binding is not None:
                raise RuntimeError("an endpoint can be started only once")
            self._binding = listen(self._address, self._first_port, port_span=self._port_span)
            fork.watch(self)
            try:
                self._bell = socket.socketpair()
                acceptor = Acceptor(
                    self._binding.sockets,
                    bell=self._bell[0],
                    connections=self._connections,
                    request_timeout_s=self._limits.request_timeout_s,
                    serve=self._serve,
                    complaints=self._complaints,
                )
                self._acceptor = threading.Thread(
                    target=acceptor.run, name="endpoint-acceptor", daemon=True
                )
                self._acceptor.start()
            except (OSError, RuntimeError) as error:  # no more file descriptors, or threads
                message = f"cannot serve on port {self.port}: {error}"
                self._release()
                self._binding = self._acceptor = None
                raise EndpointError(errno.EAGAIN, message) from error

    def close(self) -> None:
        """Stop listening, let answers under way finish for `close_grace_s`, drop everybody else.

        The port is free when it returns. It may be called again, and by a handler.
        """
        with self._lock:
            acceptor, self._acceptor = self._acceptor, None
            if acceptor is None or self._bell is None:
                return
            self._connections.close()
            # Shutting down, unlike closing, works even where a child holds a copy of the socket.
            self._bell[1].shutdown(socket.SHUT_RDWR)
            acceptor.join()
            self._release()
        self._connections.finish(self._limits.close_grace_s)

    def __enter__(self) -> Endpoint:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _sockets(self) -> tuple[socket.socket, ...]:
        return (*(self._binding.sockets if self._binding else ()), *(self._bell or ()))

    def _release(self) -> None:
        fork.unwatch(self)
        for sock in self._sockets():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def abandon_in_child(self) -> None:
        """After a fork: let go of what is the parent's, waiting for no lock."""
        self._lock = threading.RLock()
        self._acceptor = None
        self._connections.abandon()
        for sock in self._sockets():
            with contextlib.suppress(OSError):
                sock.close()

    # The rest runs in a connection's own thread.

    def _serve(self, connection: Connection) -> None:
        try:
            self._set_up(connection)
            head, rest = connection.receive_head(self._limits.max_request_bytes)
            if head:
                self._reply(connection, head, rest)
        except OSError as error:
            # It hung up, was too slow or had to make way: nothing that the trainer's log needs.
            log.debug("connection from %s ended: %s", connection.client, error)
        except Exception as error:  # noqa: BLE001 (it is logged, with its traceback)
            self._complaints.warn("connection", "a connection failed", error, trace=True)
        finally:
            self._connections.remove(connection)

    def _set_up(self, connection: Connection) -> None:
        """All that stands between an accepted socket and its first byte of HTTP."""
        if self._secure is None:
            return
        self._connections.wrap(connection, self._secure)
        handshake = getattr(connection.sock, "do_handshake", None)
        if handshake is not None:
            connection.allow(connection.deadline)
            handshake()

    def _reply(self, connection: Connection, head: bytes, rest: bytes) -> None:
        self._connections.enter(connection, Stage.HANDLING)
        method, request = "", Request(path="", client=connection.client)
        try:
            if len(head) > self._limits.max_request_bytes:
                response = plain(431, "the request's headers are too long")
            else:
                method, request = parse_request(head, client=connection.client)
                response = self._answer(method, request)
        except MalformedRequestError as error:
            response = plain(400, str(error))
        payload = render(
            response,
            accept_encoding=request.headers.get("accept-encoding"),
            head_only=method == "HEAD",
            unix_time=self._unix_time(),
        )
        self._connections.enter(connection, Stage.SENDING)
        connection.send(payload, time.monotonic() + self._limits.response_timeout_s)
        announced = {"content-length", "transfer-encoding"} & request.headers.keys()
        if rest or announced or method not in ("GET", "HEAD"):
            self._connections.enter(connection, Stage.RECEIVING)
            connection.drain()

    def _answer(self, method: str, request: Request) -> Response:
        route = request.path if request.path in self._routes else "the guard"
        try:
            response = self._guard(request) if self._guard else None
            if response is None:
                response = self._route(method, request)
            if not isinstance(response, Response):
                raise TypeError(f"a handler returned {type(response).__name__}, not Response")
        except Exception as error:  # noqa: BLE001 (it is logged, with its traceback)
            self._complaints.warn(route, f"{route} failed", error, trace=True)
            response = plain(500, "internal error")
        log.debug("%s %r from %s: %d", method, request.path, request.client, response.status)
        return response

    def _route(self, method: str, request: Request) -> Response:
        if method not in ("GET", "HEAD"):
            return plain(405, "only GET and HEAD are served", Allow="GET, HEAD")
        handler = self._routes.get(request.path)
        return plain(404, "not found") if handler is None else handler(request)
