"""Small plots as inline SVG: no script, no outside asset, bounded in size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor

from health_exporter.export.page_scale import (
    BOTTOM,
    HEIGHT,
    LARGEST,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    clipped,
    round_numbers,
)
from health_exporter.export.page_text import number, text

Point = tuple[float, float, float, float]
"""x, smallest value, largest value, mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve; `segments` are not joined to each other. `style` is its CSS class."""

    label: str
    style: str
    segments: Sequence[Sequence[Point]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The baseline, and around it what is no spike. `segments` hold x, centre, half width."""

    label: str
    segments: Sequence[Sequence[tuple[float, float, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something at a step; with no `y`, at the upper edge. `to` is where it ended."""

    label: str
    x: float
    y: float | None
    to: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot.

    Args:
        title: Heading; says the unit.
        x: First and last step.
        lines: Curves.
        band: Baseline.
        levels: Horizontal lines: value and label.
        marks: Anomalies.
        cuts: Steps at which the run resumed.
        log: True: logarithmic where the values allow it; None: where they need it.
        within: Values beyond these are drawn at them.
        percent: Whether the values are ratios to be shown as percent.
    """

    title: str
    x: tuple[float, float]
    lines: Sequence[Line]
    band: Band | None = None
    levels: Sequence[tuple[float, str]] = ()
    marks: Sequence[Mark] = ()
    cuts: Sequence[float] = ()
    log: bool | None = None
    within: tuple[float, float] = (-LARGEST, LARGEST)
    percent: bool = False


def draw(plot: Plot, name: str) -> str:
    """The plot as a `<figure>`; `name` is unique in the document.

    Curves without a value are told in words.
    """
    known = [line for line in plot.lines if any(line.segments)]
    if not known:
        return (
            f'<figure><figcaption id="{name}">{text(plot.title)}</figcaption>'
            '<p class="none">no value yet</p></figure>'
        )
    scale = Scale(plot.x, *_extremes(plot), within=plot.within, log=plot.log)
    body = "".join(
        (
            _axes(plot, scale),
            "" if plot.band is None else _band(plot.band, scale),
            "".join(_cut(step, scale) for step in plot.cuts),
            "".join(_level(value, scale) for value, _ in plot.levels),
            "".join(_curve(line, scale) for line in known),
            "".join(_mark(mark, scale) for mark in plot.marks),
        )
    )
    return (
        f'<figure><figcaption id="{name}">{text(plot.title)}{" (log)" if scale.log else ""}'
        f"</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name} {name}d">'
        f'<desc id="{name}d">{text(_described(plot, known))}</desc>{body}</svg>'
        f'<p class="key">{_key(plot, known)}</p></figure>'
    )


def _extremes(plot: Plot) -> tuple[list[float], list[float]]:
    """Of the curves; a baseline that is still wide must not flatten them."""
    points = [p for line in plot.lines for segment in line.segments for p in segment]
    lows = [clipped(low) for _, low, _, _ in points]
    highs = [clipped(high) for _, _, high, _ in points]
    lows += [level for level, _ in plot.levels]
    highs += [level for level, _ in plot.levels]
    return lows or [0.0], highs or [1.0]


def _described(plot: Plot, lines: Sequence[Line]) -> str:
    parts = [f"steps {plot.x[0]:,.0f} to {plot.x[1]:,.0f}"]
    for line in lines:
        points = [p for segment in line.segments for p in segment]
        low, high = min(p[1] for p in points), max(p[2] for p in points)
        last = _value(points[-1][3], plot.percent)
        parts.append(
            f"{line.label}: lowest {_value(low, plot.percent)}, "
            f"highest {_value(high, plot.percent)}, last {last}"
        )
    parts += [f"{label} at {number(value)}" for value, label in plot.levels]
    if plot.marks:
        named = ", ".join(f"{mark.label} at step {mark.x:,.0f}" for mark in plot.marks[-5:])
        parts.append(f"{len(plot.marks)} marked, the last: {named}")
    return "; ".join(parts)


def _value(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else number(value)


def _axes(plot: Plot, scale: Scale) -> str:
    parts = []
    for value in scale.ticks():
        y = scale.y(value)
        label = f"{value:.3g}" if not plot.percent else f"{100 * value:.3g}%"
        parts.append(
            f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>'
            f'<text class="y" x="{LEFT - 5}" y="{y + 4:.1f}">{label}</text>'
        )
    for step, anchor in _steps_named(scale):
        parts.append(
            f'<text class="{anchor}" x="{scale.x(step)}" y="{BOTTOM + 18}">{_short(step)}</text>'
        )
    return "".join(parts)


def _steps_named(scale: Scale) -> Iterator[tuple[float, str]]:
    """First and last step, and one round number well between them."""
    first, last = scale.first, scale.last
    yield first, "first"
    inside = [
        s
        for s in round_numbers(first, last, 3)
        if 0.3 < (s - first) / (last - first) < 0.7 and s == floor(s)
    ]
    if inside:
        yield inside[len(inside) // 2], "mid"
    yield last, "last"


def _short(step: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if step >= size:
            return f"{step / size:.4g}{unit}"
    return f"{step:,.0f}"


def _curve(line: Line, scale: Scale) -> str:
    """The mean as a line, and behind it the area between smallest and largest value."""
    means, area, dots = [], [], []
    for segment in filter(None, line.segments):
        xs = [f"{scale.x(point[0]):g}" for point in segment]
        ys = [f"{scale.y(point[3]):g}" for point in segment]
        means.append("M" + "L".join(map(" ".join, zip(xs, ys, strict=True))))
        if len(segment) == 1:  # a line of one point would not be seen
            dots.append(f'<circle class="{line.style}" cx="{xs[0]}" cy="{ys[0]}" r="2"/>')
        if any(low != high for _, low, high, _ in segment):
            area.append(_outline(xs, segment, scale))
    drawn = f'<path class="line {line.style}" d="{"".join(means)}"/>{"".join(dots[:20])}'
    return f'<path class="area {line.style}" d="{"".join(area)}"/>{drawn}' if area else drawn


def _outline(xs: Sequence[str], segment: Sequence[Point], scale: Scale) -> str:
    upper = [f"{x} {scale.y(point[2]):g}" for x, point in zip(xs, segment, strict=True)]
    lower = [f"{x} {scale.y(point[1]):g}" for x, point in zip(xs, segment, strict=True)]
    return f"M{'L'.join(upper)}L{'L'.join(reversed(lower))}Z"


def _band(band: Band, scale: Scale) -> str:
    parts = []
    for segment in band.segments:
        if not segment:
            continue
        xs = [f"{scale.x(x):g}" for x, _, _ in segment]
        upper = [f"{scale.y(centre + half):g}" for _, centre, half in segment]
        lower = [f"{scale.y(centre - half):g}" for _, centre, half in segment]
        around = [*zip(xs, upper, strict=True), *reversed(list(zip(xs, lower, strict=True)))]
        parts.append(f'<path class="band" d="M{"L".join(map(" ".join, around))}Z"/>')
        line = "L".join(f"{x} {scale.y(p[1]):g}" for x, p in zip(xs, segment, strict=True))
        parts.append(f'<path class="line centre" d="M{line}"/>')
    return "".join(parts)


def _level(value: float, scale: Scale) -> str:
    return f'<path class="level" d="M{LEFT} {scale.y(value)}H{RIGHT}"/>'


def _cut(step: float, scale: Scale) -> str:
    x = scale.x(step)
    return f'<path class="cut" d="M{x} {TOP}V{BOTTOM}"/>'


def _mark(mark: Mark, scale: Scale) -> str:
    x = scale.x(mark.x)
    y = TOP + 5 if mark.y is None else scale.y(mark.y)
    span = ""
    if mark.to is not None and scale.x(mark.to) > x:
        width = scale.x(mark.to) - x
        span = f'<rect class="span" x="{x}" y="{TOP}" width="{width:.1f}" height="{BOTTOM - TOP}"/>'
    # A cross for what is no number, a triangle for what is one: not by colour alone.
    shape = (
        f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
        if mark.y is None
        else f"M{x - 6:.1f} {y - 10:.1f}h12l-6 9z"
    )
    kind = "cross" if mark.y is None else "mark"
    return (
        f'{span}<path class="{kind}" d="{shape}">'
        f"<title>{text(f'{mark.label}, step {mark.x:,.0f}')}</title></path>"
    )


def _key(plot: Plot, lines: Iterable[Line]) -> str:
    """What is what, with a sample of each."""
    entries = [
        _entry(f'<path class="line {line.style}" d="M0 6H22"/>', line.label) for line in lines
    ]
    if plot.band is not None and any(plot.band.segments):
        sample = '<path class="band" d="M0 1H22V11H0Z"/><path class="line centre" d="M0 6H22"/>'
        entries.append(_entry(sample, plot.band.label))
    if plot.levels:
        labels = ", ".join(label for _, label in plot.levels)
        entries.append(_entry('<path class="level" d="M0 6H22"/>', labels))
    for shape, drawn, is_number in (
        ('<path class="mark" d="M5 2h12l-6 9z"/>', plot.marks, True),
        ('<path class="cross" d="M6 1l10 10m0 -10l-10 10"/>', plot.marks, False),
    ):
        labels = ", ".join(sorted({m.label for m in drawn if (m.y is not None) is is_number}))
        if labels:
            entries.append(_entry(shape, labels))
    if plot.cuts:
        entries.append(_entry('<path class="cut" d="M11 0V12"/>', "resume"))
    return " ".join(entries)


def _entry(sample: str, label: str) -> str:
    return (
        f'<span><svg class="sample" viewBox="0 0 22 12" aria-hidden="true">{sample}</svg>'
        f" {text(label)}</span>"
    )
