"""The ranks on the page at `/`: suspects by name, and all of them as a grid coloured by status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from health_exporter.core.standing import STATUSES, RankRow, Standing
from health_exporter.export.page_text import count, duration, ranges, text

_MOST_CELLS = 16_384
"""More ranks share a cell, which then shows the worst of them."""

_MOST_RECTANGLES = 4_096
"""Neighbours of one status are one rectangle. A run as torn as that is drawn up to here, and the
counts beside it stay exact."""

_MOST_ROWS = 1_024
"""Ranks that are looked at for their hosts: beyond that, the order of ranks tells as much."""

_HOSTS_NAMED = 8
_SUSPECTS_LISTED = 16
"""Rows of the table: who has more than these looks at hosts, not at ranks."""

_SIZES = ((64, 34.0, 8), (256, 18.0, 16), (1_024, 12.0, 32), (4_096, 8.0, 64))
"""Cells up to this many, their size in pixels, and how many are in a row: a multiple of the 8
accelerators that most hosts have, so that a host that is gone is a bar in one place."""
_SMALL = (4.0, 128)

_GAP_FROM = 8.0
"""Gaps between smaller cells would take their colour away; an outline is drawn around them."""

_NUMBERED = 64
_WORST_FIRST = ("dead", "stuck", "missing", "alive", "finished")
_SIGNS = {"dead": "\u2715", "stuck": "!", "missing": "?", "alive": "", "finished": "\u2713"}
_SIGN_WORDS = {
    "dead": "process gone",
    "stuck": "no progress",
    "missing": "has not come",
    "alive": "progressing",
    "finished": "said goodbye",
}


def draw_ranks(standing: Standing) -> str:
    """The section's content: suspects, counts, grid, and who is not alive in words."""
    statuses = standing.statuses()
    return "".join(
        (
            _suspects(standing),
            _legend(standing),
            _grid(standing, statuses) if len(statuses) > 1 else "",
            _who(standing, statuses),
        )
    )


def _suspects(standing: Standing) -> str:
    if not standing.suspects:
        return ""
    rows = []
    for suspect in standing.suspects[:_SUSPECTS_LISTED]:
        row = standing.row(suspect.rank)
        rows.append(
            f'<tr><th scope="row">{row.rank}</th><td>{text(suspect.reason)}</td>'
            f'<td class="free">{text(_place(row))}</td>'
            f"<td>{f'{row.step:,}' if row.step >= 0 else 'none'}</td>"
            f"<td>{duration(row.still_s) if row.state else ''}</td></tr>"
        )
    listed = min(len(standing.suspects), _SUSPECTS_LISTED)
    more = standing.n_suspects - listed
    caption = f"Suspects: {count(standing.n_suspects, 'rank')} that the run may be waiting for"
    rest = f"<p>{count(more, 'more suspect')}, not listed here.</p>" if more else ""
    return (
        f'<table class="suspects"><caption>{caption}</caption><thead><tr>'
        '<th scope="col">rank</th><th scope="col">is</th><th scope="col">where</th>'
        '<th scope="col">last step</th><th scope="col">no progress for</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>{rest}"
    )


def _place(row: RankRow) -> str:
    parts = [row.host] if row.host else []
    parts += [f"in {row.phase}"] if row.phase else []
    parts += [f"at {row.where}"] if row.where else []
    return ", ".join(parts) or "unknown"


def _legend(standing: Standing) -> str:
    shown = [status for status in STATUSES if standing.counts.get(status)]
    entries = "".join(
        f'<li><svg class="sample cell" viewBox="0 0 14 14" aria-hidden="true">'
        f'<rect class="{status}" x="1" y="1" width="12" height="12"/>'
        f'<text class="on {status}" x="7" y="11.5">{_SIGNS[status]}</text></svg> '
        f"<b>{standing.counts[status]:,}</b> {status} <small>({_SIGN_WORDS[status]})</small></li>"
        for status in shown
    )
    return f'<ul class="counts">{entries}</ul>'


def _who(standing: Standing, statuses: Sequence[str]) -> str:
    """The grid in words, for whoever does not see it."""
    lines = []
    for status in ("dead", "stuck", "missing"):
        if not standing.counts.get(status):
            continue
        who = (rank for rank, each in enumerate(statuses) if each == status)
        lines.append(f"<li>{status}: {ranges(who)}{_hosts(standing, status)}</li>")
    return f'<ul class="who">{"".join(lines)}</ul>' if lines else ""


def _hosts(standing: Standing, status: str) -> str:
    n = standing.counts[status]
    if status == "missing" or n > _MOST_ROWS:
        return ""
    hosts = Counter(row.host for row in standing.rows(status) if row.host)
    named = [
        f"{text(host)} ({k:,})" if n > 1 else text(host)
        for host, k in hosts.most_common(_HOSTS_NAMED)
    ]
    more = len(hosts) - len(named)
    rest = f" and {count(more, 'more host')}" if more > 0 else ""
    return f" on {', '.join(named)}{rest}" if named else ""


def _grid(standing: Standing, statuses: Sequence[str]) -> str:
    per_cell = -(-len(statuses) // _MOST_CELLS)
    cells = _cells(statuses, per_cell)
    size, columns = next(
        ((size, columns) for most, size, columns in _SIZES if len(cells) <= most), _SMALL
    )
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    width, height = size * columns, size * rows
    labels = _labels(cells, columns, size) if len(cells) <= _NUMBERED else ""
    shared = f", {per_cell} ranks in a cell" if per_cell > 1 else ""
    counts = ", ".join(f"{n:,} {status}" for status, n in standing.counts.items() if n)
    return (
        '<figure class="ranks"><figcaption id="ranks-of">'
        f"All ranks in order, {columns * per_cell:,} in a row{shared}</figcaption>"
        f'<svg viewBox="-1 -1 {width + 2:g} {height + 2:g}" width="{width + 2:g}" role="img" '
        f'aria-labelledby="ranks-of ranks-are"><desc id="ranks-are">{counts}</desc>'
        f"{_rectangles(cells, columns, size)}{_gaps(columns, rows, size)}"
        f"{_outlines(standing, per_cell, columns, size)}{labels}</svg></figure>"
    )


def _cells(statuses: Sequence[str], per_cell: int) -> Sequence[str]:
    if per_cell == 1:
        return statuses
    return [
        min(statuses[i : i + per_cell], key=_WORST_FIRST.index)
        for i in range(0, len(statuses), per_cell)
    ]


def _rectangles(cells: Sequence[str], columns: int, size: float) -> str:
    """One path for each status, a piece for each stretch of it in a row."""
    paths: dict[str, list[str]] = {}
    stretches = islice(_stretches(cells, columns), _MOST_RECTANGLES)
    for row, column, length, status in stretches:
        paths.setdefault(status, []).append(
            f"M{size * column:g} {size * row:g}h{size * length:g}v{size:g}h-{size * length:g}z"
        )
    return "".join(
        f'<path class="{status}" d="{"".join(pieces)}"/>' for status, pieces in paths.items()
    )


def _stretches(cells: Sequence[str], columns: int) -> Iterator[tuple[int, int, int, str]]:
    for start in range(0, len(cells), columns):
        column = 0
        for status, same in groupby(cells[start : start + columns]):
            length = len(list(same))
            yield start // columns, column, length, status
            column += length


def _gaps(columns: int, rows: int, size: float) -> str:
    """Lines of the background's colour between the cells."""
    if size < _GAP_FROM:
        return ""
    across = "".join(f"M0 {size * i:g}H{size * columns:g}" for i in range(1, rows))
    down = "".join(f"M{size * i:g} 0V{size * rows:g}" for i in range(1, columns))
    width = max(0.5, min(2.0, size / 10))
    return f'<path class="gap" stroke-width="{width:g}" d="{across}{down}"/>'


def _outlines(standing: Standing, per_cell: int, columns: int, size: float) -> str:
    """Around suspects, in the colour of the text; where cells are a few pixels, outside of them."""
    parts = []
    around = 0.0 if size >= _GAP_FROM else 2.5
    for cells, reason, ranks in _neighbours(standing, per_cell, columns):
        row, column = divmod(cells[0], columns)
        width = size * (cells[-1] - cells[0] + 1)
        parts.append(
            f'<rect class="suspect" x="{size * column - around:g}" y="{size * row - around:g}" '
            f'width="{width + 2 * around:g}" height="{size + 2 * around:g}">'
            f"<title>{reason}: {ranges(ranks)}</title></rect>"
        )
    return "".join(parts)


def _neighbours(
    standing: Standing, per_cell: int, columns: int
) -> Iterator[tuple[list[int], str, list[int]]]:
    """Suspects side by side in a row: their cells, their reason, their ranks."""
    cells: list[int] = []
    ranks: list[int] = []
    reason = ""
    for suspect in sorted(standing.suspects, key=lambda each: each.rank):
        cell = suspect.rank // per_cell
        joins = cells and cell - cells[-1] <= 1 and cell // columns == cells[-1] // columns
        if cells and not (joins and suspect.reason == reason):
            yield cells, reason, ranks
            cells, ranks = [], []
        cells.append(cell)
        ranks.append(suspect.rank)
        reason = suspect.reason
    if cells:
        yield cells, reason, ranks


def _labels(cells: Sequence[str], columns: int, size: float) -> str:
    parts = []
    for rank, status in enumerate(cells):
        row, column = divmod(rank, columns)
        x, y = size * (column + 0.5), size * (row + 0.5) + 4.0
        sign = _SIGNS[status]
        label = f"{rank}{sign}" if sign else str(rank)
        parts.append(f'<text class="on {status}" x="{x:g}" y="{y:g}">{label}</text>')
    return "".join(parts)
