"""Listening sockets: which addresses a setting means, and the first free port on all of them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from health_exporter.errors import EndpointError

log = logging.getLogger(__name__)

# Connections wait in the kernel while the interpreter's lock is held by native code, for seconds at
# times; with a short queue their first packet would be dropped and sent again a second later. The
# kernel cuts this to net.core.somaxconn.
BACKLOG = 1024
# On port 0 the kernel picks a port for the first address, and it may be taken on the second.
_EPHEMERAL_ATTEMPTS = 16
_MAX_PORT = 65535

_ANY_IPV6 = (socket.AF_INET6, "::")
_ANY_IPV4 = (socket.AF_INET, "0.0.0.0")
_LOCALHOST = ("127.0.0.1", "::1")
# The machine has no such protocol, or not this address.
_UNAVAILABLE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Sockets that listen on one port; `skipped` ports before it were taken."""

    sockets: tuple[socket.socket, ...]
    port: int
    skipped: int

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(str(sock.getsockname()[0]) for sock in self.sockets)


def listen(address: str, port: int, *, port_span: int = 1) -> Binding:
    """Listen on `address` and the first free port from `port` to `port + port_span - 1`.

    `address` is "" for all interfaces (IPv6 and IPv4), an IPv4 or IPv6 literal, `localhost` (both
    loopback addresses, where there are both) or a host name (all its addresses on this machine).
    A port is taken if it is on any of them. Port 0 lets the kernel choose.

    Raises EndpointError, with the system's errno, if that is impossible.
    """
    hosts = _hosts(address)
    last = min(port + port_span - 1, _MAX_PORT)
    candidates = range(port, last + 1) if port else [0] * _EPHEMERAL_ATTEMPTS
    for tried, candidate in enumerate(candidates):
        try:
            sockets = _listen_all(hosts, candidate)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise _failure(address, f"port {candidate}", error.errno) from error
        chosen = sockets[0].getsockname()[1]
        return Binding(sockets=sockets, port=chosen, skipped=tried if port else 0)
    ports = f"port {port}" if last <= port else f"ports {port} to {last}"
    raise _failure(address, ports, errno.EADDRINUSE)


def _failure(address: str, ports: str, number: int | None) -> EndpointError:
    number = number or errno.EIO
    where = address or "all interfaces"
    return EndpointError(number, f"cannot serve on {where}, {ports}: {os.strerror(number)}")


def _hosts(address: str) -> list[tuple[socket.AddressFamily, str]]:
    """Family and numeric address of each socket that `address` asks for.

    The resolver is asked for a host name only: a slow one would hold up the start of the trainer.
    """
    if not address:
        return [_ANY_IPV6 if _has_ipv6() else _ANY_IPV4]
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    names = _LOCALHOST if bare.lower() == "localhost" else (bare,)
    try:
        return list(_numeric(names))
    except socket.gaierror:
        pass
    try:
        return list(_look_up(bare, 0))
    except (socket.gaierror, UnicodeError) as error:
        message = f"cannot serve on {address}: it is no address of this machine ({error})"
        raise EndpointError(errno.EADDRNOTAVAIL, message) from error


def _numeric(names: Iterable[str]) -> Iterable[tuple[socket.AddressFamily, str]]:
    for name in names:
        yield from _look_up(name, socket.AI_NUMERICHOST)


def _look_up(name: str, flags: int) -> dict[tuple[socket.AddressFamily, str], None]:
    """Each address of `name` once, in the resolver's order."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=flags)
    return {(family, str(sockaddr[0])): None for family, _, _, _, sockaddr in found}


def _has_ipv6() -> bool:
    """Whether an IPv6 socket can be bound: containers and hardened kernels often have none."""
    if not socket.has_ipv6:
        return False
    try:
        _bind(_ANY_IPV6, 0).close()
    except OSError:
        return False
    return True


def _listen_all(
    hosts: list[tuple[socket.AddressFamily, str]], port: int
) -> tuple[socket.socket, ...]:
    """A listening socket for each host that this machine has, at least one; all on one port."""
    unavailable: OSError | None = None
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        for host in hosts:
            try:
                sock = _bind(host, port)
            except OSError as error:
                if error.errno not in _UNAVAILABLE:
                    raise
                log.debug("no socket on %s: %s", host[1], error)
                unavailable = error
                continue
            sockets.append(opened.enter_context(sock))
            # Two processes may both bind a port that nobody listens on; only one can listen.
            sock.listen(BACKLOG)
            port = sock.getsockname()[1]
        if unavailable is not None and not sockets:
            raise unavailable
        opened.pop_all()
        return tuple(sockets)


def _bind(host: tuple[socket.AddressFamily, str], port: int) -> socket.socket:
    family, address = host
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of the process before linger in TIME_WAIT for a minute, or live on in its
        # forked workers; they must not hold the port. A listening socket still does. (SO_REUSEPORT
        # would let two ranks share a port, and each scrape see one of them at random.)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` is IPv4, too
        sock.bind((address, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
