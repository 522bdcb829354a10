"""Which curves the page at `/` shows, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from health_exporter.export.history import SERIES, Column
from health_exporter.export.journal import Happening
from health_exporter.export.page_plot import Band, Line, Mark, Plot, Point, draw
from health_exporter.export.page_view import PageView

_POINTS = 150
"""Columns of a plot: as many as it has pixels in which the curve is drawn, or two to each."""

_SHOWN_Z = (-1.5, 3.0)
"""z-scores are drawn within so many thresholds, so that one great spike leaves the others to be
seen; the description of the plot tells the true highest."""

_LOSS = {
    "loss_spike": "spike",
    "loss_drift": "drift",
    "nan_inf_loss": "NaN or infinite",
    "restart_discontinuity": "broken by a resume",
}
_GRAD = {"grad_norm_spike": "spike", "nan_inf_grad": "NaN or infinite"}
_SPEED = {"mfu_drop": "drop"}


def draw_curves(page: PageView) -> str:
    """The plots, as the content of a section; "" without any step."""
    history, whole = page.history, page.snapshot.whole
    if history is None or whole is None or whole.last.step is None:
        return ""
    columns = history.whole(_POINTS)
    if not columns:
        return '<p class="none">no step in this attempt yet</p>'
    if not history.has_older:
        return _plots(_Curves(columns, page.happenings).all(), "w")
    recent = history.recent(_POINTS)
    n = recent[-1].last_step - recent[0].first_step + 1
    near = _Curves(recent, page.happenings)
    far = _Curves(columns, page.happenings)
    heading = f"The last {n:,} steps" if n > 0 else "The newest steps"
    return (
        f"<h3>{heading}</h3>{_plots(near.main(), 'n')}"
        f"<h3>Since this attempt began</h3>{_plots(far.all(), 'w')}"
    )


def _plots(plots: Iterator[Plot], prefix: str) -> str:
    drawn = "".join(draw(plot, f"{prefix}{i}") for i, plot in enumerate(plots))
    return f'<div class="plots">{drawn}</div>'


class _Curves:
    """Plots of one stretch of the run."""

    def __init__(self, columns: Sequence[Column], happenings: Sequence[Happening]) -> None:
        self._columns = columns
        self._x = (
            float(min(column.first_step for column in columns)),
            float(max(column.last_step for column in columns)),
        )
        self._happenings = [
            h
            for h in happenings
            if h.first_step is not None
            and h.last_step is not None
            and self._x[0] <= h.last_step
            and h.first_step <= self._x[1]
        ]

    def all(self) -> Iterator[Plot]:
        """Every plot that has values."""
        yield from self.main()
        if self._has("mfu"):
            yield self._plot("MFU", "mfu", _SPEED, percent=True)
        if self._has("step_time_s"):
            # Where there is MFU, a drop of the speed is marked there.
            marks = {} if self._has("mfu") else _SPEED
            yield self._plot("Step time in seconds", "step_time_s", marks)

    def main(self) -> Iterator[Plot]:
        """Those that tell of the learning."""
        yield self._plot("Loss", "loss", _LOSS, band=self._band())
        yield self._z_scores()
        if self._has("grad_norm"):
            yield self._plot("Gradient norm", "grad_norm", _GRAD, log=True)

    def _has(self, name: str) -> bool:
        i = SERIES.index(name)
        return any(column.ranges[i] for column in self._columns)

    def _plot(
        self,
        title: str,
        name: str,
        kinds: dict[str, str],
        *,
        band: Band | None = None,
        log: bool | None = None,
        percent: bool = False,
    ) -> Plot:
        label = title.removesuffix(" in seconds").lower() if title != "MFU" else title
        return Plot(
            title=title,
            x=self._x,
            lines=[self._line(label, name, "c1")],
            band=band,
            marks=list(self._marks(kinds)),
            cuts=self._cuts(),
            log=log,
            percent=percent,
        )

    def _z_scores(self) -> Plot:
        lines = [self._line("loss", "loss_z_to_threshold", "c1")]
        if self._has("grad_norm_z_to_threshold"):
            lines.append(self._line("gradient norm", "grad_norm_z_to_threshold", "c2"))
        return Plot(
            title="z-score, in thresholds (an anomaly above 1)",
            x=self._x,
            lines=lines,
            levels=[(1.0, "threshold")],
            cuts=self._cuts(),
            log=False,
            within=_SHOWN_Z,
        )

    def _line(self, label: str, name: str, style: str) -> Line:
        i = SERIES.index(name)
        return Line(label=label, style=style, segments=list(self._segments(i)))

    def _segments(self, i: int) -> Iterator[list[Point]]:
        """A curve, cut where there is no value, and at resumes."""
        segment: list[Point] = []
        for column in self._columns:
            values = column.ranges[i]
            if segment and (values is None or column.restart):
                yield segment
                segment = []
            if values is not None:
                segment.append((column.first_step, *values))
        if segment:
            yield segment

    def _band(self) -> Band:
        segments: list[list[tuple[float, float, float]]] = [[]]
        for column in self._columns:
            if column.centre is None or column.edge is None or column.restart:
                segments.append([])
            if column.centre is not None and column.edge is not None:
                half = column.edge - column.centre
                segments[-1].append((column.first_step, column.centre, half))
        known = [segment for segment in segments if segment]
        return Band(label="baseline \u00b1 threshold", segments=known)

    def _marks(self, kinds: dict[str, str]) -> Iterator[Mark]:
        for happening in self._happenings:
            label = kinds.get(happening.kind)
            if label is None or happening.first_step is None:
                continue
            value = None if happening.kind == "mfu_drop" else happening.value()
            yield Mark(label=label, x=happening.first_step, y=value, to=happening.last_step)

    def _cuts(self) -> list[float]:
        return [column.first_step for column in self._columns if column.restart]
