"""What this rank serves over HTTP, and waiting for the last scrape."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from health_exporter.core.standing import Standing
from health_exporter.errors import EndpointError
from health_exporter.export.endpoint import Endpoint
from health_exporter.export.message import Request, Response
from health_exporter.export.page import HEADERS, status_page
from health_exporter.export.page_view import PageView
from health_exporter.export.prometheus import MetricsPage
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.settings import Settings
from health_exporter.runtime.target import Target, render, standing_targets
from health_exporter.snapshot import TERMINAL_STATES, Snapshot

log = logging.getLogger(__name__)

_PORT_SPAN = 64
"""Ports tried from the one asked for: more than the processes of any host's accelerators."""

_LATELY_S = 75.0
"""A scraper that has not come for longer has gone: Prometheus asks every 15 s, or once a minute."""

_MOST_SCRAPERS = 64
"""Of those above, who may be anybody, none is waited for."""


class Served(Protocol):
    """What the endpoint shows."""

    @property
    def settings(self) -> Settings: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def state(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def standing(self) -> Standing | None: ...
    @property
    def registered(self) -> Sequence[Target]: ...
    def snapshot(self) -> Snapshot: ...
    def page_view(self) -> PageView: ...
    def report(self) -> dict[str, Any]: ...
    def stuck_for_s(self) -> float | None: ...
    def scraped(self) -> None: ...


class LastScrapes:
    """Who scrapes, and whether all of them have seen the end.

    Two Prometheus servers often scrape the same ranks, and each pages for those that vanish without
    a word. They are told apart by address and User-Agent.

    Attributes:
        done: At least one scrape has seen the end, and so has everyone who came twice or more, and
            lately: a look with curl is no reason to wait for another.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.done = threading.Event()
        self._monotonic = monotonic
        self._lock = threading.Lock()  # requests have threads of their own
        self._scrapes: dict[tuple[str, str], tuple[int, float]] = {}  # how many, and the last one
        self._saw_end: set[tuple[str, str]] = set()

    def add(self, scraper: tuple[str, str], *, terminal: bool) -> None:
        """A scrape by (address, User-Agent) that showed a terminal state, or another one."""
        now = self._monotonic()
        with self._lock:
            lately = {who: v for who, v in self._scrapes.items() if now - v[1] <= _LATELY_S}
            if terminal:
                self._saw_end.add(scraper)
                if {who for who, (n, _) in lately.items() if n > 1} <= self._saw_end:
                    self.done.set()
                return
            if scraper in lately or len(lately) < _MOST_SCRAPERS:
                lately[scraper] = lately.get(scraper, (0, now))[0] + 1, now
            self._scrapes = lately


class Server:
    """Endpoint of one rank.

    Args:
        served: The exporter.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._metrics = MetricsPage(served.snapshot)
        self._last_scrapes = LastScrapes()
        settings, identity = served.settings, served.identity
        self._endpoint: Endpoint | None = None
        if settings.port is None:
            return
        port = settings.port + identity.local_rank if settings.port else 0
        routes = {"/metrics": self._get_metrics, "/healthz": self._get_health, "/": self._get_page}
        if identity.rank == 0:
            routes["/report"] = self._get_report
            routes["/targets"] = self._get_targets
        self._endpoint = Endpoint(
            routes,
            address=settings.address,
            port=port,
            port_span=1 if settings.strict else _PORT_SPAN,
        )

    def start(self) -> None:
        """Bind and serve.

        Raises:
            EndpointError: With `strict` only: the port is taken. Otherwise the next free one is
                used, or, with a warning, none.
        """
        if self._endpoint is None:
            return
        try:
            self._endpoint.start()
        except EndpointError as error:
            if self._served.settings.strict:
                raise
            log.warning("no metrics are served: %s", error)
            self._endpoint = None
            return
        if self._endpoint.skipped_ports:
            log.warning(
                "port %d is taken, metrics are served at %d",
                self._endpoint.port - self._endpoint.skipped_ports,
                self._endpoint.port,
            )

    @property
    def port(self) -> int | None:
        """Port that is listened on."""
        return None if self._endpoint is None else self._endpoint.port

    @property
    def url(self) -> str | None:
        """Where `/metrics` is found from this machine."""
        return None if self._endpoint is None else self._endpoint.url("/metrics")

    def linger(self, seconds: float) -> None:
        """Wait until every scraper has seen a terminal state, but no longer than `seconds`."""
        if self._endpoint is None or not seconds:
            return
        started = time.monotonic()
        if not self._last_scrapes.done.wait(min(1.0, seconds)) and seconds > 1.0:
            if self._served.state == "interrupted":  # somebody sits there, and wonders
                log.warning(
                    "waiting up to %.0f s until Prometheus has seen this end (linger_s); after a "
                    "second Ctrl-C it would take the run for dead",
                    seconds,
                )
            else:
                log.info("waiting up to %.0f s for a last scrape (linger_s)", seconds)
            self._last_scrapes.done.wait(seconds - (time.monotonic() - started))

    def hurry(self) -> None:
        """End `linger`."""
        self._last_scrapes.done.set()

    def close(self) -> None:
        """Stop serving; the port is free afterwards."""
        if self._endpoint is not None:
            self._endpoint.close()

    def _get_metrics(self, request: Request) -> Response:
        state = self._served.state
        body, content_type = self._metrics.render(request.headers.get("Accept", ""))
        self._served.scraped()
        scraper = (request.client, request.headers.get("User-Agent", ""))
        self._last_scrapes.add(scraper, terminal=state in TERMINAL_STATES)
        return Response(content_type=content_type, body=body)

    def _get_health(self, request: Request) -> Response:
        stuck_s = self._served.stuck_for_s()
        if stuck_s is None:
            return Response(body=f"{self._served.state}\n".encode())
        return Response(status=503, body=f"stuck: no progress for {stuck_s:.0f} s\n".encode())

    def _get_report(self, request: Request) -> Response:
        body = json.dumps(self._served.report(), allow_nan=False, indent=1) + "\n"
        return Response(content_type="application/json", body=body.encode())

    def _get_targets(self, request: Request) -> Response:
        served, identity = self._served, self._served.identity
        own = Target(
            address=served.address,
            run=served.settings.run,
            host=identity.host,
            rank=identity.rank,
            local_rank=identity.local_rank,
        )
        targets = standing_targets(
            own,
            served.standing,
            linger_s=served.settings.linger_s,
            registered=served.registered,
        )
        return Response(content_type="application/json", body=render(targets).encode())

    def _get_page(self, request: Request) -> Response:
        page = status_page(self._served.page_view(), request.query)
        content_type = "text/html; charset=utf-8"
        return Response(content_type=content_type, body=page.encode(), headers=HEADERS)
