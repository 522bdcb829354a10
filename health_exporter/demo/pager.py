"""A stand-in for PagerDuty, and for the other places that Alertmanager notifies.

It takes what PagerDuty's Events API v2 takes and refuses what that refuses, so that a page that
arrives here would have arrived there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

ROUTING_KEY = "0123456789abcdef0123456789abcdef"
"""The one integration key that it knows; 32 characters, as PagerDuty's are."""

_ACTIONS = ("trigger", "acknowledge", "resolve")
_SEVERITIES = ("critical", "error", "warning", "info")
_MAX_SUMMARY = 1024
_MAX_DEDUP_KEY = 255
_MAX_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerEvent:
    """One event that was accepted.

    Args:
        time: Unix time at which it came.
        action: `trigger`, `acknowledge` or `resolve`.
        dedup_key: Events with the same one are one incident.
        body: All of it.
    """

    time: float
    action: str
    dedup_key: str
    body: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """What stands on the phone."""
        return str(self.body.get("payload", {}).get("summary", ""))

    @property
    def source(self) -> str:
        """What the event is about: the run. Absent in a resolve that has no payload."""
        return str(self.body.get("payload", {}).get("source", ""))


def problems(body: object, size: int = 0) -> list[str]:
    """What is wrong with an event by the rules of Events API v2; empty if nothing is."""
    if size > _MAX_BYTES:
        return [f"Event object is larger than {_MAX_BYTES} bytes"]
    if not isinstance(body, dict):
        return ["Event object is not an object"]
    found = []
    if body.get("routing_key") != ROUTING_KEY:
        found.append("'routing_key' is missing or unknown")
    action = body.get("event_action")
    if action not in _ACTIONS:
        found.append(f"'event_action' must be one of {', '.join(_ACTIONS)}")
    key = body.get("dedup_key", "")
    if not isinstance(key, str) or len(key) > _MAX_DEDUP_KEY:
        found.append(f"'dedup_key' must be a string of at most {_MAX_DEDUP_KEY} characters")
    if action in ("acknowledge", "resolve") and not key:
        found.append("'dedup_key' is missing")
    if action == "trigger":
        found += _payload_problems(body.get("payload"))
    return found


def _payload_problems(payload: object) -> list[str]:
    if not isinstance(payload, dict):
        return ["'payload' is missing"]
    found = []
    summary = payload.get("summary")
    if not isinstance(summary, str) or not summary:
        found.append("'payload.summary' is missing or blank")
    elif len(summary) > _MAX_SUMMARY:
        found.append(f"'payload.summary' is longer than {_MAX_SUMMARY} characters")
    source = payload.get("source")
    if not isinstance(source, str) or not source:
        found.append("'payload.source' is missing or blank")
    if payload.get("severity") not in _SEVERITIES:
        found.append(f"'payload.severity' must be one of {', '.join(_SEVERITIES)}")
    return found


class Pager:
    """Listens on a free loopback port until the end of `with`.

    Args:
        on_event: Called with each accepted event, in a thread of the server.

    Attributes:
        events: Accepted events, in order.
        refused: For each refused one, what was wrong with it.
        tickets: Bodies of the webhook that stands for mail or Slack.
        watchdog_times: Unix times at which the dead man's switch was called.
    """

    def __init__(self, on_event: Callable[[PagerEvent], None] | None = None) -> None:
        self.events: list[PagerEvent] = []
        self.refused: list[list[str]] = []
        self.tickets: list[Mapping[str, Any]] = []
        self.watchdog_times: list[float] = []
        self._on_event = on_event
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="pager", daemon=True
        )

    def __enter__(self) -> Pager:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, path: str) -> str:
        """`/v2/enqueue`, `/ticket` or `/watchdog`, with this server's address."""
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def pages(self, run: str) -> list[PagerEvent]:
        """The first trigger of each incident of a run: what wakes somebody."""
        first: dict[str, PagerEvent] = {}
        for event in list(self.events):
            if event.action == "trigger" and event.source == run:
                first.setdefault(event.dedup_key, event)
        return list(first.values())

    def open_pages(self, run: str) -> list[PagerEvent]:
        """Those of them that have not been resolved."""
        last = {event.dedup_key: event.action for event in list(self.events)}
        return [page for page in self.pages(run) if last[page.dedup_key] != "resolve"]

    def ticket_alerts(self, run: str) -> set[str]:
        """Names of the alerts of a run that have come as tickets."""
        return {
            alert["labels"]["alertname"]
            for ticket in list(self.tickets)
            for alert in ticket["alerts"]
            if alert["labels"].get("run") == run
        }

    def receive(self, path: str, raw: bytes) -> tuple[int, Mapping[str, Any]]:
        """Status and answer to one request."""
        if path == "/watchdog":
            self.watchdog_times.append(time.time())
            return 200, {}
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if path == "/ticket":
            if isinstance(body, dict):
                self.tickets.append(body)
            return 200, {}
        if path != "/v2/enqueue":
            return 404, {}
        found = problems(body, len(raw))
        if found:
            self.refused.append(found)
            return 400, {
                "status": "invalid event",
                "message": "Event object is invalid",
                "errors": found,
            }
        event = PagerEvent(
            time=time.time(),
            action=body["event_action"],
            dedup_key=body.get("dedup_key") or f"event-{len(self.events)}",
            body=body,
        )
        self.events.append(event)
        if self._on_event is not None:
            self._on_event(event)
        return 202, {
            "status": "success",
            "message": "Event processed",
            "dedup_key": event.dedup_key,
        }


def _handler(pager: Pager) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = pager.receive(self.path, raw)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    return Handler
