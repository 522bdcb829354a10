from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from health_exporter.errors import EndpointError
from health_exporter.export.listener import Binding, listen

Listen = Callable[..., Binding]


def ipv6_works() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not ipv6_works(), reason="the machine has no IPv6")


@pytest.fixture
def bound() -> Iterator[Listen]:
    """`listen`, whose sockets are closed after the test."""
    with contextlib.ExitStack() as opened:

        def call(address: str, port: int = 0, **arguments: int) -> Binding:
            binding = listen(address, port, **arguments)
            for sock in binding.sockets:
                opened.enter_context(sock)
            return binding

        yield call


@pytest.fixture
def hold() -> Iterator[Callable[..., int]]:
    """Has another socket listen on an address, as another process would; returns its port."""
    with contextlib.ExitStack() as opened:

        def call(host: str, port: int = 0) -> int:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = opened.enter_context(socket.socket(family))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port))
            sock.listen()
            return int(sock.getsockname()[1])

        yield call


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


@needs_ipv6
def test_all_interfaces_are_ipv6_and_ipv4(bound: Listen):
    binding = bound("")

    assert binding.addresses == ("::",)
    assert answers("127.0.0.1", binding.port)
    assert answers("::1", binding.port)


def test_all_interfaces_are_ipv4_where_there_is_no_ipv6(
    bound: Listen, monkeypatch: pytest.MonkeyPatch
):
    class WithoutIPv6(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments, **more)

    monkeypatch.setattr(socket, "socket", WithoutIPv6)
    binding = bound("")

    assert binding.addresses == ("0.0.0.0",)
    assert answers("127.0.0.1", binding.port)


@needs_ipv6
@pytest.mark.parametrize(
    ("address", "served", "not_served"),
    [("127.0.0.1", "127.0.0.1", "::1"), ("::1", "::1", "127.0.0.1"), ("[::1]", "::1", "127.0.0.1")],
)
def test_a_literal_is_served_alone(bound: Listen, address: str, served: str, not_served: str):
    binding = bound(address)

    assert binding.addresses == (served,)
    assert answers(served, binding.port)
    assert not answers(not_served, binding.port)


@needs_ipv6
def test_localhost_is_both_loopback_addresses_on_one_port(bound: Listen):
    binding = bound("localhost")

    assert binding.addresses == ("127.0.0.1", "::1")
    assert answers("127.0.0.1", binding.port)
    assert answers("::1", binding.port)


def test_localhost_is_ipv4_alone_where_there_is_no_ipv6(
    bound: Listen, monkeypatch: pytest.MonkeyPatch
):
    real_bind = socket.socket.bind

    class WithoutLoopback6(socket.socket):
        def bind(self, address: Any) -> None:
            if address[0] == "::1":
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            real_bind(self, address)

    monkeypatch.setattr(socket, "socket", WithoutLoopback6)

    assert bound("localhost").addresses == ("127.0.0.1",)


def test_a_host_name_is_all_its_addresses(bound: Listen, monkeypatch: pytest.MonkeyPatch):
    real = socket.getaddrinfo

    def resolver(host: str, port: Any, **arguments: Any) -> Any:
        if host != "trainer.example":
            return real(host, port, **arguments)
        if arguments.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        # 192.0.2.1 is reserved for documentation: an address that this machine does not have.
        return [(socket.AF_INET, 1, 6, "", (ip, 0)) for ip in ("192.0.2.1", "127.0.0.1")] * 2

    monkeypatch.setattr(socket, "getaddrinfo", resolver)

    assert bound("trainer.example").addresses == ("127.0.0.1",)


@pytest.mark.parametrize("address", ["", "::", "0.0.0.0", "127.0.0.1", "localhost", "LOCALHOST"])
def test_no_resolver_is_asked_for_what_is_no_host_name(
    bound: Listen, monkeypatch: pytest.MonkeyPatch, address: str
):
    real = socket.getaddrinfo

    def numeric_only(host: str, port: Any, **arguments: Any) -> Any:
        flags = arguments.get("flags", 0)
        assert flags & socket.AI_NUMERICHOST, f"a resolver was asked for {host}"
        return real(host, port, **arguments)

    def never(*arguments: object) -> None:
        raise AssertionError(f"a resolver was asked for {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", numeric_only)
    for name in ("getfqdn", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo"):
        monkeypatch.setattr(socket, name, never)

    bound(address)


def test_a_taken_port_gives_the_next_free_one(bound: Listen, hold: Callable[..., int]):
    taken = hold("127.0.0.1")

    binding = bound("127.0.0.1", taken, port_span=64)

    assert taken < binding.port < taken + 64
    assert binding.skipped == binding.port - taken


def test_a_free_port_is_taken_as_it_is(bound: Listen, hold: Callable[..., int]):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        free = sock.getsockname()[1]

    binding = bound("127.0.0.1", free, port_span=64)

    assert (binding.port, binding.skipped) == (free, 0)


@needs_ipv6
@pytest.mark.parametrize("address", ["", "localhost"])
@pytest.mark.parametrize("holder", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_in_one_family_is_taken(
    bound: Listen, hold: Callable[..., int], address: str, holder: str
):
    taken = hold(holder)

    assert bound(address, taken, port_span=64).skipped >= 1


@needs_ipv6
@pytest.mark.parametrize("address", ["", "0.0.0.0", "127.0.0.1", "::1", "localhost"])
def test_a_port_of_a_listener_like_ours_is_taken(bound: Listen, address: str):
    taken = bound("").port

    with pytest.raises(EndpointError):
        listen(address, taken)


def test_without_a_span_a_taken_port_is_an_error_that_names_it(hold: Callable[..., int]):
    taken = hold("127.0.0.1")

    with pytest.raises(
        OSError, match=rf"127\.0\.0\.1, port {taken}: Address already in use"
    ) as info:
        listen("127.0.0.1", taken)

    assert isinstance(info.value, EndpointError)
    assert info.value.errno == errno.EADDRINUSE


def test_a_span_that_is_all_taken_is_an_error_that_names_it(hold: Callable[..., int]):
    def two_neighbours() -> int:
        while True:
            first = hold("0.0.0.0")
            with contextlib.suppress(OSError, OverflowError):
                hold("0.0.0.0", first + 1)
                return first

    first = two_neighbours()

    with pytest.raises(EndpointError, match=f"all interfaces, ports {first} to {first + 1}: "):
        listen("", first, port_span=2)


def test_a_span_ends_with_the_last_port(hold: Callable[..., int], bound: Listen):
    hold("127.0.0.1", 65535)

    with pytest.raises(EndpointError, match="port 65535"):
        listen("127.0.0.1", 65535, port_span=64)


def test_an_address_of_another_machine_is_an_error_that_names_it():
    with pytest.raises(EndpointError, match=r"192\.0\.2\.1, port 19999: Cannot assign"):
        listen("192.0.2.1", 19999, port_span=64)


def test_a_name_that_does_not_resolve_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch):
    def fails(host: str, port: Any, **arguments: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)

    with pytest.raises(EndpointError, match=r"nowhere\.example.*Name or service not known"):
        listen("nowhere.example", 0)


@needs_ipv6
def test_a_failure_leaves_no_socket_open(hold: Callable[..., int]):
    taken = hold("::1")

    with pytest.raises(EndpointError):
        listen("localhost", taken)

    assert not answers("127.0.0.1", taken)


@needs_ipv6
def test_a_port_that_the_kernel_chose_is_free_in_both_families(
    bound: Listen, hold: Callable[..., int], monkeypatch: pytest.MonkeyPatch
):
    """The kernel chooses for the first address; on the second that port may be taken."""
    taken: list[int] = []
    real_bind = socket.socket.bind

    class Unlucky(socket.socket):
        def bind(self, address: Any) -> None:
            if address[0] == "::1" and not taken:
                taken.append(address[1])
                raise OSError(errno.EADDRINUSE, "Address already in use")
            real_bind(self, address)

    monkeypatch.setattr(socket, "socket", Unlucky)
    binding = bound("localhost", 0)

    assert taken
    assert binding.addresses == ("127.0.0.1", "::1")
    assert binding.skipped == 0


def test_two_listeners_never_share_a_port(bound: Listen):
    (sock,) = bound("127.0.0.1").sockets

    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) != 0
