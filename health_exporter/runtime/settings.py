"""How the exporter is configured: one table, three ways in.

An argument of `HealthExporter` wins over an environment variable `HEALTH_EXPORTER_<NAME>`, which
wins over a key in the YAML file that `HEALTH_EXPORTER_CONFIG` names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

import yaml

from health_exporter.errors import SettingsError
from health_exporter.runtime.setting_value import PARSERS

PREFIX = "HEALTH_EXPORTER_"
_CONFIG = PREFIX + "CONFIG"
_OF_KUBERNETES = re.compile(PREFIX + r"(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""Kubernetes sets these in every container, and HEALTH_EXPORTER_PORT to tcp://..., where a Service
named health-exporter exists; they are no settings."""

DEFAULT_PORT = 19400
"""Of `port`, which has its reason; service discovery and the demo have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one exporter; immutable, checked when made. Times are in seconds.

    Raises:
        SettingsError: Values are wrong; it lists all of them.
    """

    run: str
    """Name of the run: the same across restarts, unique among the runs on one Prometheus."""

    rank: int | None = None
    """Number of this process in the job; None: from torchrun, Open MPI or Slurm, else 0."""

    local_rank: int | None = None
    """Number of this process on its host; None: as `rank`."""

    world_size: int | None = None
    """Processes in the job; None: as `rank`, else 1."""

    port: int | None = DEFAULT_PORT
    """Port of local rank 0; each local rank adds its number. Outside the exporters' registry
    (9100-9999) and below the ephemeral ports. 0: any free one. None: no endpoint."""

    address: str = ""
    """Address to listen on; empty: all interfaces, IPv4 and IPv6, as exporters do."""

    receipt_dir: str = "./health_receipts"
    """Folder of the receipts; rank 0 writes into a subfolder named after the run."""

    receipt_interval_s: float = 30.0
    """How often the receipt so far is written: what `kill -9` can lose of step statistics."""

    beat_interval_s: float = 5.0
    """How often a rank tells the others that its process lives."""

    beat_timeout_s: float = 30.0
    """Silence after which a process is dead: several beats, and longer than the 12 s for which
    ordinary native calls have been seen to hold the interpreter's lock."""

    heartbeat_timeout_s: float | None = None
    """Time without progress after which a rank is stuck; None: max(30, 10 x median step time)."""

    startup_timeout_s: float = 600.0
    """The same before the first steps, where models are compiled and ranks still come."""

    checkpoint_timeout_s: float = 1800.0
    """The same inside a phase marked `checkpoint`."""

    eval_timeout_s: float = 1800.0
    """The same inside a phase marked `eval`."""

    linger_s: float = 20.0
    """At the end, wait at most this long until one scrape has seen how the run ended; longer than
    the usual scrape interval of 15 s, shorter than torchrun's grace of 30 s. 0: do not wait."""

    otlp: bool | None = None
    """Push the metrics by OTLP, too; None: where `OTEL_EXPORTER_OTLP_ENDPOINT` or
    `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` is set. Needs the extra `otel`."""

    otlp_events: bool = False
    """Where metrics are pushed, also push anomalies and restarts as OpenTelemetry log events."""

    strict: bool = False
    """Raise what would otherwise be logged and counted; for tests."""

    model: str = ""
    """Name of the model, for `training_health_run_info`."""

    def __post_init__(self) -> None:
        problems = [problem for check in _CHECKS for problem in check(self)]
        if problems:
            raise SettingsError(problems)

    @classmethod
    def resolve(cls, arguments: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
        """Settings from arguments, environment and configuration file.

        Args:
            arguments: Name to value; only what was given.
            environ: Environment variables.

        Raises:
            SettingsError: Unknown names, values that do not parse or are out of range, or a file
                that cannot be read; it lists every problem.
        """
        problems: list[str] = []
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for source, given in (
            (environ.get(_CONFIG, ""), _from_file(environ.get(_CONFIG), problems)),
            ("environment", _from_environ(environ)),
            ("arguments", arguments),
        ):
            for name, value in given.items():
                shown = PREFIX + name.upper() if source == "environment" else name
                if name not in known:
                    problems.append(_unknown(shown, name, known, source))
                    continue
                try:
                    parse = PARSERS[str(known[name].type)]
                    values[name] = parse(value, source == "environment")
                except (TypeError, ValueError) as error:
                    problems.append(f"{shown} {error}, got {value!r}")
        missing = [name for name, field in known.items() if field.default is MISSING]
        problems += [
            f"{name} must be given, as {name}=... or {PREFIX}{name.upper()}"
            for name in missing
            if name not in values and not any(p.startswith(name) for p in problems)
        ]
        if problems:
            # What did parse is checked too, so that one start shows every problem.
            try:
                cls(**{"run": "unknown", **values})
            except SettingsError as error:
                problems += error.problems
            raise SettingsError(problems)
        return cls(**values)


class SettingsArguments(TypedDict, total=False):
    """`Settings` as keyword arguments, for type checkers; the meanings stand there."""

    run: str
    rank: int | None
    local_rank: int | None
    world_size: int | None
    port: int | None
    address: str
    receipt_dir: str | Path
    receipt_interval_s: float
    beat_interval_s: float
    beat_timeout_s: float
    heartbeat_timeout_s: float | None
    startup_timeout_s: float
    checkpoint_timeout_s: float
    eval_timeout_s: float
    linger_s: float
    otlp: bool | None
    otlp_events: bool
    strict: bool
    model: str


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and name != _CONFIG and value  # templates leave empty ones
        if not (_OF_KUBERNETES.fullmatch(name) or value.startswith(("tcp://", "udp://")))
    }


def _from_file(path: str | None, problems: list[str]) -> dict[str, object]:
    if not path:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"{_CONFIG}={path} cannot be read: {error}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        problems.append(f"{_CONFIG}={path} must hold keys and values, got {content!r}")
        return {}
    return {str(key): value for key, value in content.items()}


def _unknown(shown: str, name: str, known: Mapping[str, object], source: str) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    where = "" if source in ("environment", "arguments") else f" (in {source})"
    if close:
        meant = PREFIX + close[0].upper() if source == "environment" else close[0]
        return f"{shown} is not a setting{where}; {meant} may be meant"
    return f"{shown} is not a setting{where}; the settings are {', '.join(known)}"


def _check_names(settings: Settings) -> list[str]:
    if not settings.run.strip():
        return [f"run must not be empty, got {settings.run!r}"]
    problems = [
        f"{name} must be text in UTF-8, got {value!r}"
        for name in ("run", "model", "receipt_dir", "address")
        if not _is_text(value := getattr(settings, name))
    ]
    if problems:
        return problems
    # It names a folder (percent-encoded, three bytes a byte) whose name the system limits to 255.
    if len(settings.run.encode()) > 80:
        return [f"run must be at most 80 bytes long, got {len(settings.run.encode())}"]
    if not settings.receipt_dir:
        return ["receipt_dir must not be empty, got ''"]
    return []


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes of the environment that are no UTF-8
        return False
    return "\0" not in value


def _check_ranks(settings: Settings) -> list[str]:
    problems = [
        f"{name} must be >= {least}, got {value}"
        for name, value, least in (
            ("rank", settings.rank, 0),
            ("local_rank", settings.local_rank, 0),
            ("world_size", settings.world_size, 1),
        )
        if value is not None and value < least
    ]
    if settings.port is not None and not 0 <= settings.port <= 65535:
        problems.append(f"port must be within 0..65535, got {settings.port}")
    return problems


def _check_times(settings: Settings) -> list[str]:
    problems = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name.endswith("_s") and value is not None:
            least_excluded = field.name != "linger_s"
            if not (0 < value < float("inf") or (value == 0 and not least_excluded)):
                sign = ">" if least_excluded else ">="
                problems.append(f"{field.name} must be a finite number {sign} 0, got {value}")
    if 0 < settings.beat_timeout_s <= settings.beat_interval_s:
        problems.append(
            f"beat_timeout_s must be > beat_interval_s={settings.beat_interval_s:g}, "
            f"got {settings.beat_timeout_s:g}"
        )
    return problems


_CHECKS = (_check_names, _check_ranks, _check_times)
