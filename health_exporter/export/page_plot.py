"""Small plots as inline SVG: no script, no outside asset, bounded in size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from health_exporter.export.page_text import number, text

WIDTH, HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 352, 10, 164
"""Drawn in 360 units, which is about the width of a phone: text of 13 units stays readable there,
and a wider screen has several plots in a row."""

_LARGEST = 1e300
"""Larger values are drawn there: a difference of two floats must be one."""

_WIDE = 4.0
"""A series whose largest value is this many times the middle one is drawn on a logarithmic scale:
on a linear one it would be a flat line and a spike."""

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
    within: tuple[float, float] = (-_LARGEST, _LARGEST)
    percent: bool = False


class _Scale:
    """From values to units of the picture."""

    def __init__(self, plot: Plot) -> None:
        lows, highs = _extremes(plot)
        low, high = max(min(lows), plot.within[0]), min(max(highs), plot.within[1])
        middle = sorted(highs)[len(highs) // 2]
        wants = high > _WIDE * abs(middle) if plot.log is None else plot.log
        self.log = wants and low > 0.0
        if self.log:
            low, high = log10(low), log10(high)
        room = 0.06 * (high - low) or 0.05 * abs(high) or (0.1 if self.log else 1.0)
        self.low, self.high = low - room, high + room
        self._per_unit = (_BOTTOM - _TOP) / (self.high - self.low)
        self.first, self.last = plot.x if plot.x[1] > plot.x[0] else (plot.x[0], plot.x[0] + 1)

    def x(self, step: float) -> float:
        x = _LEFT + (step - self.first) / (self.last - self.first) * (_RIGHT - _LEFT)
        return round(_LEFT if x < _LEFT else _RIGHT if x > _RIGHT else x, 1)

    def y(self, value: float) -> float:
        if self.log:
            value = log10(value) if value > 0.0 else self.low
        if value > _LARGEST or value < -_LARGEST:
            value = _clipped(value)
        y = _BOTTOM - (value - self.low) * self._per_unit
        return round(_TOP if y < _TOP else _BOTTOM if y > _BOTTOM else y, 1)

    def ticks(self) -> list[float]:
        if not self.log:
            return _round_numbers(self.low, self.high, 4)
        powers = range(floor(self.low), ceil(self.high) + 1)
        step = max(1, (len(powers) + 3) // 4)
        values = [10.0**p for p in powers if p % step == 0 and -300 < p < 300]
        if len(self._inside(values)) < 2:
            values = [f * 10.0**p for p in powers if -300 < p < 300 for f in (1, 2, 5)]
        if len(self._inside(values)) < 2 and self.low > -300 and self.high < 300:
            values = _round_numbers(10.0**self.low, 10.0**self.high, 4)
        return self._inside(values)

    def _inside(self, values: Iterable[float]) -> list[float]:
        return [value for value in values if self.low <= log10(value) <= self.high]


def _extremes(plot: Plot) -> tuple[list[float], list[float]]:
    """Of the curves; a baseline that is still wide must not flatten them."""
    points = [p for line in plot.lines for segment in line.segments for p in segment]
    lows = [_clipped(low) for _, low, _, _ in points]
    highs = [_clipped(high) for _, _, high, _ in points]
    lows += [level for level, _ in plot.levels]
    highs += [level for level, _ in plot.levels]
    return lows or [0.0], highs or [1.0]


def _clipped(value: float) -> float:
    return min(_LARGEST, max(-_LARGEST, value))


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Up to about `most` round numbers between two."""
    raw = (high - low) / most
    if not isfinite(raw) or raw <= 0.0:
        return []
    power = 10.0 ** floor(log10(raw))
    if not power:
        return []
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw)
    first = ceil(low / step)
    return [n * step for n in range(first, first + most + 2) if n * step <= high]


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
    scale = _Scale(plot)
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


def _axes(plot: Plot, scale: _Scale) -> str:
    parts = []
    for value in scale.ticks():
        y = scale.y(value)
        label = f"{value:.3g}" if not plot.percent else f"{100 * value:.3g}%"
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y}H{_RIGHT}"/>'
            f'<text class="y" x="{_LEFT - 5}" y="{y + 4:.1f}">{label}</text>'
        )
    for step, anchor in _steps_named(scale):
        parts.append(
            f'<text class="{anchor}" x="{scale.x(step)}" y="{_BOTTOM + 18}">{_short(step)}</text>'
        )
    return "".join(parts)


def _steps_named(scale: _Scale) -> Iterator[tuple[float, str]]:
    """First and last step, and one round number well between them."""
    first, last = scale.first, scale.last
    yield first, "first"
    inside = [
        s
        for s in _round_numbers(first, last, 3)
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


def _curve(line: Line, scale: _Scale) -> str:
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


def _outline(xs: Sequence[str], segment: Sequence[Point], scale: _Scale) -> str:
    upper = [f"{x} {scale.y(point[2]):g}" for x, point in zip(xs, segment, strict=True)]
    lower = [f"{x} {scale.y(point[1]):g}" for x, point in zip(xs, segment, strict=True)]
    return f"M{'L'.join(upper)}L{'L'.join(reversed(lower))}Z"


def _band(band: Band, scale: _Scale) -> str:
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


def _level(value: float, scale: _Scale) -> str:
    return f'<path class="level" d="M{_LEFT} {scale.y(value)}H{_RIGHT}"/>'


def _cut(step: float, scale: _Scale) -> str:
    x = scale.x(step)
    return f'<path class="cut" d="M{x} {_TOP}V{_BOTTOM}"/>'


def _mark(mark: Mark, scale: _Scale) -> str:
    x = scale.x(mark.x)
    y = _TOP + 5 if mark.y is None else scale.y(mark.y)
    span = ""
    if mark.to is not None and scale.x(mark.to) > x:
        width = scale.x(mark.to) - x
        span = (
            f'<rect class="span" x="{x}" y="{_TOP}" width="{width:.1f}" height="{_BOTTOM - _TOP}"/>'
        )
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
