"""HTTP/1.x messages as values: a request read from its bytes, a response turned into bytes.

No sockets here. RFC 9110 and RFC 9112 are meant where a comment says "the RFC".
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

# A smaller body fits one Ethernet frame (1,500 bytes) with its headers, compressed or not.
GZIP_MIN_BYTES = 1400
# Of a typical exposition level 1 leaves 5 % more bytes than level 6, in half the time; and the time
# is the trainer's.
GZIP_LEVEL = 1

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([!-~\x80-\xff]+) HTTP/(1)\.([0-9])")
_FIELD_LINE = re.compile(rf"({_TOKEN}):([^\x00-\x08\x0a-\x1f\x7f]*)")
_TOKEN_ONLY = re.compile(_TOKEN)
_FIELD_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_ABSOLUTE_FORM = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_QUALITY = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_TOKEN_START = re.compile(_TOKEN.encode())

# What frames the message or is computed from it, so that no handler can contradict it.
_RESERVED = frozenset({"connection", "content-length", "content-type", "date", "transfer-encoding"})


class MalformedRequestError(ValueError):
    """The bytes are no HTTP/1.x request; the message says what is wrong with them."""


class Headers(Mapping[str, str]):
    """Header fields; names compare without case, and a repeated one is joined by commas."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            key = name.lower()
            before = self._values.get(key)
            self._values[key] = value if before is None else f"{before}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({sorted(self._values)})"  # names only: a value may be a password


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a handler is asked.

    `path` is percent-decoded and has no query; `query` is what follows `?`, as sent; `client` is
    the peer's address without its port (IPv4 in IPv4's notation on a dual-stack socket, too).
    """

    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=Headers)
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a handler answers. `headers` are added to, and win over, those that every answer has.

    Raises ValueError for a status that is none or allows no body (204, 205, 304), for a header
    that could end the head early, and for one that is computed (such as Content-Length); TypeError
    for a body that is not bytes.
    """

    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise TypeError(f"body must be bytes, not {type(self.body).__name__}")
        if not 200 <= self.status <= 599 or self.status in (204, 205, 304):
            raise ValueError(f"status must be from 200 to 599 and allow a body, not {self.status}")
        for name, value in (("Content-Type", self.content_type), *self.headers.items()):
            if not _TOKEN_ONLY.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
                raise ValueError(f"header {name!r} has a character that is not allowed")
        if reserved := _RESERVED.intersection(name.lower() for name in self.headers):
            raise ValueError(f"headers must not set {', '.join(sorted(reserved))}")


def plain(status: int, text: str, **headers: str) -> Response:
    """An answer of one line of text."""
    return Response(status=status, body=f"{text}\n".encode(), headers=headers)


def head_end(data: bytes | bytearray, start: int = 0) -> int | None:
    """Where the head of a request ends (behind its empty line), or None if it has not yet.

    A bare LF ends a line too, as the RFC allows: people type requests into `nc`.
    `start` is where to begin the search.
    """
    found = _HEAD_END.search(data, start)
    return found.end() if found else None


def can_become_request(data: bytes | bytearray) -> bool:
    """False as soon as the first byte shows that this is another protocol.

    A TLS handshake on a plain port has no empty line to wait for; answered at once, the scraper
    says what is wrong instead of timing out.
    """
    start = bytes(data).lstrip(b"\r\n")
    return not start or _TOKEN_START.match(start) is not None


def parse_request(head: bytes, *, client: str) -> tuple[str, Request]:
    """The method and the request in `head`, which ends with its empty line.

    Raises MalformedRequestError.
    """
    lines = head.decode("latin-1").lstrip("\r\n").split("\n")
    if len(lines) < 3 or lines[-1] or lines[-2].rstrip("\r"):
        raise MalformedRequestError("the request ended early")
    lines = [line.removesuffix("\r") for line in lines[:-2]]
    request_line = _REQUEST_LINE.fullmatch(lines[0])
    if request_line is None:
        raise MalformedRequestError("the request line is not METHOD TARGET HTTP/1.x")
    method, target, _, minor = request_line.groups()
    headers = Headers(_parse_field(line) for line in lines[1:])
    if minor != "0" and "host" not in headers:
        raise MalformedRequestError("an HTTP/1.1 request has a Host header")
    path, query = _split_target(target)
    return method, Request(path=path, query=query, headers=headers, client=client)


def _parse_field(line: str) -> tuple[str, str]:
    matched = _FIELD_LINE.fullmatch(line)
    if matched is None:
        raise MalformedRequestError("a header line is not NAME: VALUE")
    return matched[1], matched[2].strip(" \t")


def _split_target(target: str) -> tuple[str, str]:
    """Path and query of a request target; a proxy's `http://host/path` is allowed by the RFC."""
    absolute = _ABSOLUTE_FORM.match(target)
    if absolute:
        target = target[absolute.end() :]
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return unquote(path), query


def gzip_accepted(accept_encoding: str | None) -> bool:
    """Whether the client takes gzip and does not prefer no coding (RFC 9110, section 12.5.3)."""
    qualities: dict[str, float] = {}
    for part in (accept_encoding or "").split(","):
        coding, *parameters = (word.strip().lower() for word in part.split(";"))
        qualities[coding.removeprefix("x-")] = _quality(parameters)
    any_other = qualities.get("*", 0.0)
    wanted = qualities.get("gzip", any_other)
    return wanted > 0.0 and wanted >= qualities.get("identity", 0.0)


def _quality(parameters: list[str]) -> float:
    """The q of a coding; what is no quality is 0, so that a garbled offer is not taken up."""
    for parameter in parameters:
        name, _, value = (word.strip() for word in parameter.partition("="))
        if name == "q":
            return float(value) if _QUALITY.fullmatch(value) else 0.0
    return 1.0


def render(
    response: Response,
    *,
    accept_encoding: str | None = None,
    head_only: bool = False,
    unix_time: float,
) -> bytes:
    """The bytes of `response`, compressed where `accept_encoding` allows it and it pays.

    `head_only` leaves out the body and nothing else, as HEAD wants it. `unix_time` is what the
    Date header says.
    """
    body = response.body
    fields = {
        "date": ("Date", formatdate(unix_time, usegmt=True)),
        "content-type": ("Content-Type", response.content_type),
        "connection": ("Connection", "close"),
        # A scrape is a measurement of now, and what a run is called must not become markup.
        "cache-control": ("Cache-Control", "no-store"),
        "x-content-type-options": ("X-Content-Type-Options", "nosniff"),
    }
    fields.update((name.lower(), (name, value)) for name, value in response.headers.items())
    if "content-encoding" not in fields:
        varies_by = [fields["vary"][1]] if "vary" in fields else []
        fields["vary"] = ("Vary", ", ".join([*varies_by, "Accept-Encoding"]))
        if len(body) >= GZIP_MIN_BYTES and gzip_accepted(accept_encoding):
            body = gzip.compress(body, GZIP_LEVEL, mtime=0)
            fields["content-encoding"] = ("Content-Encoding", "gzip")
    fields["content-length"] = ("Content-Length", str(len(body)))
    lines = [f"HTTP/1.1 {response.status} {_reason(response.status)}"]
    lines += [f"{name}: {value}" for name, value in fields.values()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    return head if head_only else head + body


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""  # a status of one's own; the RFC allows an empty reason
