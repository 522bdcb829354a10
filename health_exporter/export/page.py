"""The page at `/`, for people without a dashboard: is the run healthy, and if not, what is wrong?

One HTML document without script or outside asset, well-formed as XML too, of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from urllib.parse import parse_qs, quote

from health_exporter.core.anomaly import KINDS
from health_exporter.export.journal import Happening
from health_exporter.export.page_curve import draw_curves
from health_exporter.export.page_problem import Problem
from health_exporter.export.page_ranks import draw_ranks
from health_exporter.export.page_style import HEADERS, STYLE
from health_exporter.export.page_text import count, duration, moment, number, text
from health_exporter.export.page_verdict import Verdict, judge
from health_exporter.export.page_view import PageView
from health_exporter.snapshot import TERMINAL_STATES, RunView

__all__ = ["HEADERS", "status_page"]

_REFRESH_S = 10
"""Twice the interval of the ranks' beats: more often, little is new."""

_EVENTS_SHOWN = 20

_SIGNS = {"good": "\u2713", "warn": "!", "bad": "\u2715", "info": "\u2022"}
_ICON_COLOURS = {"good": "#0b6b2e", "warn": "#a86200", "bad": "#b3161b", "info": "#0b4f8a"}

_NO_EVENT = ("state",)
"""Not listed: what the page says anyway, at its top."""


def status_page(page: PageView, query: str = "") -> str:
    """The document.

    Args:
        page: What it shows.
        query: Query of its address; `refresh=0` stops it from being loaded again by itself.
    """
    verdict = judge(page)
    title = f"{_SIGNS[verdict.level]} {page.snapshot.run}, rank {page.snapshot.rank}"
    refreshes = _refreshes(page, query)
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        + (f'<meta http-equiv="refresh" content="{_REFRESH_S}"/>' if refreshes else "")
        + f"<title>{text(title)}</title>{_icon(verdict)}<style>{STYLE}</style></head>"
    )
    return (
        f"{head}<body><header>{_heading(page)}</header>"
        f"<main>{''.join(_sections(page, verdict))}</main>"
        f"{_footer(page, refreshes)}</body></html>\n"
    )


def _refreshes(page: PageView, query: str) -> bool:
    """Not after the end: the endpoint goes, and the last word should stay to be read."""
    return page.state not in TERMINAL_STATES and parse_qs(query).get("refresh") != ["0"]


def _icon(verdict: Verdict) -> str:
    """The tab's icon: a coloured disc with the verdict's sign."""
    drawn = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
        f'<circle cx="8" cy="8" r="8" fill="{_ICON_COLOURS[verdict.level]}"/>'
        '<text x="8" y="12" font-size="12" font-family="sans-serif" text-anchor="middle" '
        f'fill="#fff">{_SIGNS[verdict.level]}</text></svg>'
    )
    return f'<link rel="icon" href="data:image/svg+xml,{quote(drawn)}"/>'


def _heading(page: PageView) -> str:
    whole = page.snapshot.whole
    parts = [f"rank {page.snapshot.rank} of {page.world_size:,} on {page.snapshot.own.host}"]
    if whole is not None:
        parts += [whole.info[key] for key in ("model", "device") if whole.info.get(key)]
    return f"<h1>{text(page.snapshot.run)} <small>{text(', '.join(parts))}</small></h1>"


def _sections(page: PageView, verdict: Verdict) -> Iterator[str]:
    yield _verdict(page, verdict)
    yield _section("now", "Now", _values(page))
    ranks = ""
    if page.standing is not None and page.world_size > 1:
        ranks = _section("ranks", "Ranks", draw_ranks(page.standing))
    suspected = page.standing is not None and page.standing.suspects
    if suspected:
        yield ranks
    curves = draw_curves(page)
    if curves:
        yield _section("curves", "Curves", curves)
    if not suspected:
        yield ranks
    if page.snapshot.whole is not None:
        yield _section("events", "Last events", _events(page))
        yield _section("anomalies", "Anomalies of the whole run", _kinds(page.snapshot.whole, page))
    elif page.snapshot.own.phase_seconds:
        yield _section("phases", "Time in phases", _phases(page))


def _section(name: str, title: str, content: str) -> str:
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>{content}</section>'


def _verdict(page: PageView, verdict: Verdict) -> str:
    problems = "".join(f"<li>{_problem(problem, page.now)}</li>" for problem in verdict.problems)
    listed = f"<ul>{problems}</ul>" if problems else ""
    return (
        f'<section class="verdict {verdict.level}" aria-labelledby="verdict">'
        f'<h2 id="verdict"><span aria-hidden="true">{_SIGNS[verdict.level]}</span> '
        f"{text(verdict.headline)}</h2>{listed}{_where_rank_0_is(page)}</section>"
    )


def _problem(problem: Problem, now: float) -> str:
    parts = [f"<b>{text(problem.what[:1].upper() + problem.what[1:])}</b>"]
    if problem.since is not None:
        parts.append(f"since {moment(problem.since, now)}")
    if problem.until is not None:
        parts.append(f"last {moment(problem.until, now)}")
    if problem.detail:
        parts.append(text(problem.detail))
    return "; ".join(parts) + "."


def _where_rank_0_is(page: PageView) -> str:
    if page.snapshot.whole is not None:
        return ""
    at = (
        f'; its page is probably at <a href="//{text(quote(page.rank0, safe="[]:%"))}/">'
        f"{text(page.rank0)}</a>"
        if page.rank0
        else ""
    )
    return f"<p>Whether the run as a whole is healthy, rank 0 knows{at}.</p>"


def _values(page: PageView) -> str:
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{text(value)}"
        f"{f' <small>{note}</small>' if note else ''}</dd></div>"
        for name, value, note in _tiles(page)
    )
    return f"<dl>{tiles}</dl>"


def _tiles(page: PageView) -> Iterator[tuple[str, str, str]]:
    """Name, value, and a note that is already escaped."""
    own, whole = page.snapshot.own, page.snapshot.whole
    yield "state", page.state, ""
    yield "step", "none yet" if own.step is None else f"{own.step:,}", ""
    if whole is not None:
        yield from _run_tiles(page, whole)
    elif own.exception:
        yield "exception", own.exception, ""
    yield "phase", page.phase or "not marked", ""
    if page.state not in TERMINAL_STATES:
        ago = f"{duration(page.still_s)} ago" if page.still_s >= 1.0 else "just now"
        yield "last progress", ago, f"stuck after {duration(own.timeout_s)}"


def _run_tiles(page: PageView, whole: RunView) -> Iterator[tuple[str, str, str]]:
    last = whole.last
    if last.loss is not None:
        if last.loss_judged is not None:
            centre, _, z_score = last.loss_judged
            note = f"baseline {number(centre)}, z {z_score:+.1f}"
        else:
            note = "no baseline yet" if isfinite(last.loss) else "not judged"
        yield "loss", number(last.loss), note
    if last.grad_norm is not None:
        grad = last.grad_judged
        note = "" if grad is None else f"baseline {number(grad[0])}, z {grad[2]:+.1f}"
        yield "gradient norm", number(last.grad_norm), note
    if last.mfu is not None:
        yield "MFU", f"{last.mfu:.1%}", ""
    step_time_s = None if page.history is None else page.history.last_step_time_s
    if step_time_s is not None:
        yield "step time", duration(step_time_s), ""
    if whole.goodput is not None and last.n_steps:
        yield "goodput", f"{whole.goodput:.1%}", "of the time since the first start"
    lost = f"{count(last.lost_steps, 'step')} done again" if last.lost_steps else ""
    yield "resumes", f"{last.n_restarts:,}", lost
    if page.world_size > 1:
        yield "ranks alive", f"{whole.ranks.get('alive', 0):,} of {page.world_size:,}", ""


def _events(page: PageView) -> str:
    listed = [h for h in page.happenings if h.event not in _NO_EVENT]
    listed.sort(key=lambda h: h.last_time, reverse=True)
    rows = "".join(
        f"<tr><td>{moment(h.last_time, page.now)}</td><td>{_steps(h)}</td>"
        f'<td class="free">{text(_told(h))}</td></tr>'
        for h in listed[:_EVENTS_SHOWN]
    )
    return (
        '<table><thead><tr><th scope="col">when</th><th scope="col">step</th>'
        f'<th scope="col">what</th></tr></thead><tbody>{rows}</tbody></table>'
        if rows
        else '<p class="none">nothing has happened yet</p>'
    )


def _steps(happening: Happening) -> str:
    first, last = happening.first_step, happening.last_step
    if first is None or last is None:
        return ""
    return f"{first:,}" if first == last else f"{min(first, last):,} to {max(first, last):,}"


def _told(happening: Happening) -> str:
    fields, kind = happening.fields, happening.kind
    who = f"rank{'s' if len(happening.ranks) > 1 else ''} {', '.join(happening.ranks)}"
    who = f", {who}" if happening.ranks else ""
    who += f" on {fields['host']}" if fields.get("host") and len(happening.ranks) == 1 else ""
    who += f", at {fields['where']}" if fields.get("where") else ""
    times = f" ({happening.count:,} times)" if happening.count > 1 else ""
    if happening.event == "anomaly":
        value = happening.value()
        told = "" if value is None or happening.ranks or kind == "stuck_rank" else number(value)
        told = f", {told}" if told else ""
        return f"{KINDS.get(kind, kind)}{who}{told}{times}"
    if happening.event == "outage_end":
        how = {"recovered": "goes on again", "died": "died", "goodbye": "said goodbye"}
        return f"end of an outage{who}: {how.get(str(fields.get('ending')), 'over')}{times}"
    if happening.event == "start":
        before = fields.get("previous_state")
        ended = f"; the process before it had ended as {before}" if before else ""
        return f"start on {fields.get('host', '')}, attempt {fields.get('attempt', '')}{ended}"
    if happening.event == "restart":
        lost = fields.get("lost_steps")
        return "resume" + (f", {count(lost, 'step')} done again" if lost else "")
    words = {
        "missing_rank": "has never come",
        "checkpoint_loaded": "a checkpoint's state was loaded",
        "new_run": "a new run under an old name: its record was put aside",
    }
    return f"{who.removeprefix(', ')} {words.get(happening.event, happening.event)}{times}".strip()


def _kinds(whole: RunView, page: PageView) -> str:
    found = {kind: n for kind, n in whole.last.anomalies.items() if n}
    if not found:
        return '<p class="none">no anomaly yet</p>'
    rows = []
    for kind, n in found.items():
        at, step = whole.last.last_anomalies.get(kind, (None, None))
        when = "" if at is None else moment(at, page.now)
        rows.append(
            f'<tr><th scope="row" class="free">{text(kind)}</th><td>{n:,}</td>'
            f"<td>{'' if step is None else f'{step:,}'}</td><td>{when}</td></tr>"
        )
    return (
        '<table><thead><tr><th scope="col">kind</th><th scope="col">how many</th>'
        '<th scope="col">last step</th><th scope="col">last time</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _phases(page: PageView) -> str:
    rows = "".join(
        f'<tr><th scope="row">{text(phase)}</th><td>{duration(seconds)}</td></tr>'
        for phase, seconds in page.snapshot.own.phase_seconds.items()
    )
    return (
        '<table><thead><tr><th scope="col">phase</th><th scope="col">time so far</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _footer(page: PageView, refreshes: bool) -> str:
    links = [("/metrics", "metrics"), ("/healthz", "health")]
    if page.snapshot.whole is not None:
        links += [("/report", "receipt so far"), ("/targets", "targets")]
    listed = " \u00b7 ".join(f'<a href="{path}">{name}</a>' for path, name in links)
    if refreshes:
        how = f'loads itself again every {_REFRESH_S} s (<a href="/?refresh=0">stop that</a>)'
    else:
        how = 'does not load itself again (<a href="/">do so</a>)'
    return (
        f"<footer><p>As of {moment(page.now, page.now)}; this page {how}.</p>"
        f'<nav aria-label="other views"><p>{listed}</p></nav></footer>'
    )
