"""Whether this rank pushes by OTLP, and what."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import health_exporter
from health_exporter.errors import SettingsError
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.settings import Settings
from health_exporter.snapshot import Snapshot

if TYPE_CHECKING:
    from health_exporter.export.otlp_push import Push

log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"

_DEFAULT_INTERVAL_S = 15.0
"""The usual scrape interval, which the alert rules are made for: at the SDK's 60 s, ranks would
seem to come and go."""


class Pushed(Protocol):
    """The exporter, as far as it is pushed."""

    @property
    def settings(self) -> Settings: ...
    @property
    def identity(self) -> Identity: ...
    def snapshot(self) -> Snapshot: ...
    def scraped(self) -> None: ...


def make_push(pushed: Pushed, environ: Mapping[str, str]) -> Push | None:
    """The pushes of this rank, not yet begun; None where none are wanted or possible.

    Args:
        pushed: The exporter.
        environ: Environment variables.

    Raises:
        SettingsError: With `otlp=True`: the extra is not installed, or a standard variable is
            wrong. Where only the environment asks for pushes, that is a warning: it may have been
            meant for another program.
    """
    otlp = pushed.settings.otlp
    if not _is_wanted(otlp, environ):
        return None
    try:
        return _make(pushed, environ)
    except ImportError as error:
        problem = f"OTLP needs more packages, pip install 'health-exporter[otel]': {error}"
    except ValueError as error:
        problem = f"OTLP: {error}"
    if otlp:
        raise SettingsError([problem])
    log.warning("no metrics are pushed: %s", problem)
    return None


def _is_wanted(otlp: bool | None, environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        if otlp:
            log.warning("no metrics are pushed: OTEL_SDK_DISABLED is set")
        return False
    if otlp is not None:
        return otlp
    exporters = environ.get("OTEL_METRICS_EXPORTER", "").strip() or "otlp"
    has_endpoint = any(environ.get(name, "").strip() for name in _ENDPOINTS)
    return has_endpoint and "otlp" in (name.strip() for name in exporters.split(","))


def _make(pushed: Pushed, environ: Mapping[str, str]) -> Push:
    # Only here: the packages are an extra, and take a while to import.
    from health_exporter.export.otlp import MessageMaker, make_resource
    from health_exporter.export.otlp_event import EventQueue
    from health_exporter.export.otlp_http import HttpClient
    from health_exporter.export.otlp_push import FLUSH_S, Push
    from health_exporter.export.otlp_sender import GrpcSender, make_sender

    settings, identity = pushed.settings, pushed.identity
    preferred = environ.get(_TEMPORALITY, "").strip().lower()
    if preferred not in ("", "cumulative"):
        log.warning(
            "%s=%s is not followed: what is pushed is cumulative, as Prometheus needs it",
            _TEMPORALITY,
            preferred,
        )
    version = health_exporter.__version__
    resource = make_resource(settings.run, identity.rank, identity.host, version)
    sender = make_sender(environ)
    events = None
    if settings.otlp_events and isinstance(sender, GrpcSender):
        log.warning("otlp_events needs OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; none are pushed")
    elif settings.otlp_events:
        events = EventQueue(HttpClient(environ, "logs"), resource, settings.run, version=version)
    is_http = not isinstance(sender, GrpcSender)
    target = HttpClient(environ, "metrics").shown if is_http else "the gRPC endpoint"
    return Push(
        MessageMaker(pushed.snapshot, resource, version=version).make,
        sender,
        make_sender(environ, FLUSH_S),
        target=target,
        rank=identity.rank,
        interval_s=_interval(environ.get(_INTERVAL, "")),
        events=events,
        on_pushed=pushed.scraped,
    )


def _interval(text: str) -> float:
    """Seconds, from the standard variable's milliseconds."""
    if not text.strip():
        return _DEFAULT_INTERVAL_S
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < math.inf:
        raise ValueError(f"{_INTERVAL} must be a number of milliseconds > 0, got {text!r}")
    if milliseconds / 1000 > _DEFAULT_INTERVAL_S:
        log.warning(
            "%s=%s is longer than the %g s that the alert rules are made for",
            _INTERVAL,
            text,
            _DEFAULT_INTERVAL_S,
        )
    return milliseconds / 1000
