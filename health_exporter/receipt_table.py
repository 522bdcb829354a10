"""A receipt as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

# A kind that was found a thousand times is named with its first steps; the receipt has the rest.
_STEPS_SHOWN = 8

_UNHURT = ("finished", "running")


def render(report: Mapping[str, object]) -> Table:
    """The receipt's main facts, one a row; what the receipt does not say has no row.

    Args:
        report: What `report.json` holds. Keys may be missing: the receipt of a run that was killed
            early, or of another version, is shown as far as it goes.
    """
    return facts_table("training health", _rows(report))


def facts_table(title: str, rows: Iterable[tuple[str, str | Text]]) -> Table:
    """A table of names and values, whose texts are shown as they are and not as markup."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def _rows(report: Mapping[str, object]) -> Iterator[tuple[str, str | Text]]:
    for name in ("run", "model"):
        if report.get(name):
            yield name, str(report[name])
    if report.get("status"):
        status = str(report["status"])
        yield "status", Text(_status(status, report), "green" if status in _UNHURT else "red")
    if report.get("status") == "lost" and report.get("last_sign_at"):
        yield "last sign", str(report["last_sign_at"])
    if isinstance(report.get("healthy"), bool):
        yield "verdict", _verdict(report)
    yield from _steps(report)
    yield from _loss(report)
    yield from _speed(report)
    yield from _anomalies(report)
    yield from _restarts(report)
    yield from _ranks(report)
    for name in ("path", "receipt_path"):
        if report.get(name):
            yield "receipt", str(report[name])


def _status(status: str, report: Mapping[str, object]) -> str:
    exception = _mapping(report, "exception")
    if not exception:
        return status
    return f"{status}: {exception.get('type', 'exception')}: {exception.get('message', '')}"


def _verdict(report: Mapping[str, object]) -> Text:
    if report["healthy"]:
        return Text("healthy", "green")
    reasons = report.get("reasons")
    listed = reasons if isinstance(reasons, Sequence) and not isinstance(reasons, str) else []
    return Text("NOT healthy: " + ", ".join(map(str, listed)), "red")


def _steps(report: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if isinstance(report.get("n_steps"), int):
        last = report.get("last_step")
        yield "steps", f"{report['n_steps']:,}" + ("" if last is None else f", the last {last}")
    if isinstance(report.get("n_tokens"), int):
        yield "tokens", f"{report['n_tokens']:,}"


def _loss(report: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    loss = _mapping(report, "loss")
    first, last = loss.get("first"), loss.get("last")
    if first is not None and last is not None:
        yield "loss", f"{four_digits(first)} first, {four_digits(last)} last"


def _speed(report: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    mfu = _mapping(report, "mfu")
    if isinstance(mfu.get("mean"), (int, float)):
        mean, low, high = (f"{mfu.get(key, mfu['mean']):.1%}" for key in ("mean", "min", "max"))
        yield "MFU", f"{mean} mean, {low} to {high}"
    seconds = _mapping(report, "step_time_s")
    if isinstance(seconds.get("mean"), (int, float)):
        yield "step time", f"{seconds['mean']:.3g} s mean"
    if isinstance(report.get("goodput"), float):
        yield "goodput", f"{report['goodput']:.1%} of the time since the first start"


def _anomalies(report: Mapping[str, object]) -> Iterator[tuple[str, Text]]:
    counts = _mapping(report, "anomalies_by_kind")
    listed = _sequence(report, "anomalies")
    found = {kind: count for kind, count in counts.items() if count}
    if not found:
        if "anomalies_by_kind" in report:
            yield "anomalies", Text("none", "green")
        return
    for kind, count in found.items():
        steps = [anomaly.get("step") for anomaly in listed if anomaly.get("kind") == kind]
        shown = ", ".join(str(step) for step in steps[:_STEPS_SHOWN])
        more = "" if count <= _STEPS_SHOWN else ", ..."
        at = f": step {shown}{more}" if shown else ""
        yield "anomalies" if kind == next(iter(found)) else "", Text(f"{count} {kind}{at}", "red")


def _restarts(report: Mapping[str, object]) -> Iterator[tuple[str, str | Text]]:
    restarts = _mapping(report, "restarts")
    steps = restarts.get("steps") or []
    count = restarts.get("n", len(steps))
    if not count:
        if restarts:
            yield "restarts", "none"
        return
    lost = restarts.get("lost_steps")
    again = f", {lost} steps done again" if lost else ""
    yield "restarts", f"{count}, at step {', '.join(map(str, steps[:_STEPS_SHOWN]))}{again}"
    if "continuity_ok" in restarts:
        good = restarts["continuity_ok"]
        text = "the loss went on as before" if good else "LOST: the loss jumped after a resume"
        yield "continuity", Text(text, "green" if good else "red")


def _ranks(report: Mapping[str, object]) -> Iterator[tuple[str, str | Text]]:
    if isinstance(report.get("world_size"), int):
        counts = _mapping(report, "ranks")
        how = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        yield "ranks", f"{report['world_size']}" + (f": {how}" if how else "")
    for outage in _sequence(report, "outages")[:_STEPS_SHOWN]:
        yield "outage", Text(_outage(outage), "red")


def _outage(outage: Mapping[str, Any]) -> str:
    rank, host, phase = outage.get("rank"), outage.get("host"), outage.get("phase")
    parts = [str(outage.get("kind", "outage"))]
    parts += [] if rank is None else [f"rank {rank}"]
    parts += [f"on {host}"] if host else []
    parts += [f"after step {outage['last_step']}"] if "last_step" in outage else []
    parts += [f"in {phase}"] if phase else []
    parts += [f"at {outage['where']}"] if outage.get("where") else []
    ended = outage.get("ending")
    return " ".join(parts) + (f", ended: {ended}" if ended else "")


def _mapping(report: Mapping[str, object], key: str) -> Mapping[str, Any]:
    value = report.get(key)
    return value if isinstance(value, Mapping) else {}


def _sequence(report: Mapping[str, object], key: str) -> Sequence[Mapping[str, Any]]:
    value = report.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def four_digits(value: object) -> str:
    """A number to four digits; a number that is none is a string in a receipt."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)
