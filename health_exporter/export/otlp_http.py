"""One message to a collector over HTTP, once.

It is sent from here and not by the SDK's exporter, which (as of 1.45) sleeps between its retries up
to a minute while newer values are waiting, draws from the trainer's global random numbers at every
export, takes a redirection for success, and reads answers of any length. A push that failed is not
repeated: the next one carries everything, as all values are cumulative.
"""

from __future__ import annotations

import contextlib
import gzip
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

import requests
from google.protobuf.message import Message

_DEFAULT_TIMEOUT_S = 10.0
"""The standard's."""

_MAX_ANSWER = 4096
"""Bytes read of an answer: a partial success with its message; the rest is not for us."""

_MAX_REASON = 200
"""Characters of a collector's own words that are logged."""

_ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


class SendError(Exception):
    """A push did not arrive.

    Args:
        reason: Why.
        retry_after_s: When the collector wants to hear of us again; None: it did not say.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason[:_MAX_REASON])
        self.retry_after_s = retry_after_s


class HttpClient:
    """Posts messages to one address.

    Args:
        environ: Environment variables.
        signal: `metrics` or `logs`.
        timeout_s: Time for one message; None: from the environment.

    Raises:
        ValueError: A variable is wrong.
    """

    def __init__(
        self, environ: Mapping[str, str], signal: str, timeout_s: float | None = None
    ) -> None:
        def own_or_general(name: str) -> str:
            return variable(environ, signal.upper(), name)

        own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
        base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or "http://localhost:4318"
        self.url = own or f"{base.rstrip('/')}/v1/{signal}"
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"the OTLP endpoint must be an http(s) URL, got {self.shown!r}")
        self._timeout_s = timeout_s or _timeout(own_or_general("TIMEOUT"))
        encoding = own_or_general("COMPRESSION").lower()
        if encoding not in ("", "none", *_ENCODINGS):
            raise ValueError(
                f"OTEL_EXPORTER_OTLP_COMPRESSION must be none, gzip or deflate, got {encoding!r}"
            )
        self._compress = _ENCODINGS.get(encoding)
        self._headers = {
            # One connection a push: at several seconds between two, an idle connection for each of
            # thousands of ranks costs the collector more than it saves, and none is inherited by
            # the trainer's children.
            "Connection": "close",
            "User-Agent": "health-exporter",
            **_headers(own_or_general("HEADERS")),
            "Content-Type": "application/x-protobuf",
            **({} if self._compress is None else {"Content-Encoding": encoding}),
        }
        self._verify: str | bool = own_or_general("CERTIFICATE") or True
        certificate, key = own_or_general("CLIENT_CERTIFICATE"), own_or_general("CLIENT_KEY")
        self._certificate = (certificate, key) if certificate and key else certificate or None

    @property
    def shown(self) -> str:
        """The address without what may be secret."""
        address = urlsplit(self.url)
        return address._replace(netloc=address.netloc.rpartition("@")[2], query="").geturl()

    def post(self, message: Message) -> bytes:
        """Send a message.

        Returns:
            The beginning of the answer; empty where it is no message.

        Raises:
            SendError: It was not taken.
        """
        body = message.SerializeToString()
        if self._compress is not None:
            body = self._compress(body)
        deadline = time.monotonic() + self._timeout_s
        try:
            with requests.Session() as session:
                answer = session.post(
                    self.url,
                    data=body,
                    headers=self._headers,
                    timeout=self._timeout_s,
                    verify=self._verify,
                    cert=self._certificate,
                    stream=True,
                    allow_redirects=False,
                )
                content = _beginning(answer, deadline)
        except (requests.RequestException, OSError, ValueError) as error:
            raise SendError(f"{type(error).__name__}: {error}") from error
        if not 200 <= answer.status_code < 300:
            reason = f"HTTP {answer.status_code} {answer.reason or ''}".strip()
            raise SendError(reason, _retry_after(answer.headers.get("Retry-After", "")))
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise SendError(f"HTTP {answer.status_code} with a web page: no OTLP receiver")
        return content if kind == "application/x-protobuf" else b""


def variable(environ: Mapping[str, str], signal: str, name: str) -> str:
    """The signal's own variable, else the one for all signals."""
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}", "").strip()
    return own or environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def _timeout(text: str) -> float:
    """Seconds, as the Python SDK reads them, or milliseconds, as the specification has them: no
    collector is waited for longer than two minutes, and none for less than a tenth of a second."""
    if not text:
        return _DEFAULT_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_TIMEOUT must be a number > 0, got {text!r}")
    return value if value <= 120 else value / 1000


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = item.partition("=")
        if not separator or not name.strip():
            # Without the text, which may hold a token.
            raise ValueError("OTEL_EXPORTER_OTLP_HEADERS must be name=value pairs and commas")
        headers[unquote(name.strip())] = unquote(value.strip())
    return headers


def _beginning(answer: requests.Response, deadline: float) -> bytes:
    """At most `_MAX_ANSWER` bytes; one at a time, so that one that comes in drops is left, too."""
    content = bytearray()
    for byte in answer.iter_content(1):
        content += byte
        if len(content) >= _MAX_ANSWER or time.monotonic() > deadline:
            break
    return bytes(content)


def _retry_after(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, TypeError):
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return max(0.0, moment.timestamp() - time.time())
    return None
