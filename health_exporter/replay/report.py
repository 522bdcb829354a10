"""What a replay found, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from health_exporter.core.anomaly import GRAVE_KINDS, KINDS
from health_exporter.receipt_table import facts_table, four_digits

# A report of thousands of events is read by nobody; --json has them.
_EVENTS_SHOWN = 200
_LINES_SHOWN = 10


def render(report: Mapping[str, Any]) -> RenderableType:
    """The files and what they were taken for, the run's main facts, and its events in order."""
    return Group(
        _files(report["files"]), facts_table("training health", _rows(report)), *_events(report)
    )


def _files(files: Sequence[Mapping[str, Any]]) -> Table:
    table = facts_table("read", ())
    for file in files:
        table.add_row("file", Text(file["path"]))
        table.add_row("format", Text(f"{file['format']} ({file['why']})"))
        columns = ", ".join(f"{field} = {name}" for field, name in file["columns"].items())
        table.add_row("taken for", Text(columns))
        unit = file["unit"]
        table.add_row("rows", f"{file['n_rows']:,} in {file['n_lines']:,} {unit}s")
        if file["n_damaged"]:
            table.add_row("damaged", Text(_damaged(file), "yellow"))
        for note in file["notes"]:
            table.add_row("note", Text(note, "yellow"))
    return table


def _damaged(file: Mapping[str, Any]) -> str:
    first = file["damaged"][:_LINES_SHOWN]
    shown = "; ".join(f"{file['unit']} {number}: {reason}" for number, reason in first)
    more = file["n_damaged"] - len(first)
    return f"{file['n_damaged']:,}: {shown}" + (f"; and {more:,} more" if more > 0 else "")


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    yield "run", str(report["run"])
    reasons = ", ".join(report["reasons"])
    yield (
        "verdict",
        Text("healthy", "green") if report["healthy"] else Text(f"NOT healthy: {reasons}", "red"),
    )
    yield (
        "steps",
        f"{report['n_steps']:,} judged, from {report['first_step']} to {report['last_step']}",
    )
    left_out = [f"{count:,} {what}" for what, count in report["left_out"].items() if count]
    if left_out:
        yield "left out", ", ".join(left_out)
    if report["n_launches"] > 1:
        yield "launches", f"{report['n_launches']}, each begun anew"
    loss = report["loss"]
    if loss["first"] is not None:
        low, high = four_digits(loss["min"]), four_digits(loss["max"])
        ends = f"{four_digits(loss['first'])} first, {four_digits(loss['last'])} last"
        yield "loss", f"{ends}, {low} to {high}"
    seconds = report["step_time_s"]
    if seconds["mean"] is not None:
        low, high = four_digits(seconds["min"]), four_digits(seconds["max"])
        yield "step time", f"{four_digits(seconds['mean'])} s mean, {low} to {high} s"
    if report["started_time"] is not None:
        yield "time", f"{_date(report['started_time'])} to {_date(report['ended_time'])}"
    restarts = report["restarts"]
    again = f", {restarts['lost_steps']:,} steps done again" if restarts["lost_steps"] else ""
    yield "resumes", f"{restarts['n']}{again}" if restarts["n"] else "none"
    for index, (kind, count) in enumerate(report["anomalies_by_kind"].items()):
        style = "red" if kind in GRAVE_KINDS else "yellow"
        yield "" if index else "anomalies", Text(f"{count:,} {kind}: {KINDS[kind]}", style)
    if not report["anomalies_by_kind"]:
        yield "anomalies", Text("none", "green")
    yield "preset", str(report["preset"])


def _events(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    events = report["events"]
    if not events:
        return
    table = Table(title="what happened", title_justify="left", box=None, pad_edge=False)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("how", overflow="fold")
    several = len(report["files"]) > 1
    unit = report["files"][0]["unit"]
    for event in events[:_EVENTS_SHOWN]:
        kind = str(event["kind"])
        style = "red" if kind in GRAVE_KINDS else "" if kind not in KINDS else "yellow"
        place = f"file {event['file'] + 1}, {unit}" if several else unit
        where = f"{place} {event['line']}"
        if "time" in event:
            where += f", {_date(event['time'])}"
        how = Text.assemble(_how(event), (f"; {where}", "dim"))
        table.add_row(Text(_steps(event)), Text(kind, style), how)
    yield table
    if len(events) > _EVENTS_SHOWN or report["n_events"] > len(events):
        yield Text(f"... and {report['n_events'] - _EVENTS_SHOWN:,} more; --json lists them")


def _steps(event: Mapping[str, Any]) -> str:
    first, last = event["first_step"], event["last_step"]
    return str(first) if first == last else f"{first} to {last}"


def _how(event: Mapping[str, Any]) -> str:
    if "text" in event:
        return str(event["text"])
    text = four_digits(event["value"])
    if "baseline" in event:
        text += f", baseline {four_digits(event['baseline'])}"
    if "z_score" in event:
        text += f", z {four_digits(event['z_score'])}"
    return text if event["n"] == 1 else f"{event['n']:,} times, at worst {text}"


def _date(unix_time: float) -> str:
    try:
        moment = datetime.fromtimestamp(unix_time, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(unix_time)
    return moment.strftime("%Y-%m-%d %H:%M:%S")
