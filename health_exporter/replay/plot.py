"""A run as a picture: loss with its baseline, gradient norm, step time, and what happened."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from health_exporter.core import strict_json
from health_exporter.replay.curve import Curve, Segment
from health_exporter.replay.error import LogError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")

# Okabe and Ito's palette, which people with any of the common kinds of colour blindness can tell
# apart; shapes differ as well, so that no colour is needed.
_BLACK, _ORANGE, _SKY, _GREEN, _BLUE, _RED, _PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Mark:
    label: str
    panel: str
    shape: str
    colour: str


_MARKS = {
    "loss_spike": _Mark("loss spike", "loss", "^", _RED),
    "loss_drift": _Mark("loss drift", "loss", "s", _PURPLE),
    "restart_discontinuity": _Mark("lossy resume", "loss", "D", _ORANGE),
    "nan_inf_loss": _Mark("loss NaN or infinite", "loss", "X", _BLACK),
    "grad_norm_spike": _Mark("gradient norm spike", "grad_norm", "v", _RED),
    "nan_inf_grad": _Mark("gradient norm NaN or infinite", "grad_norm", "X", _BLACK),
    "mfu_drop": _Mark("speed drop", "step_time_s", "P", _GREEN),
}
_LINES = {"restart": ("resume", "--", _BLUE), "launch": ("begun anew", "-", _BLACK)}

# A range of losses of which the largest is this many times the middle one is drawn on a
# logarithmic scale: on a linear one it would be a flat line and a spike.
_WIDE = 4.0

# Of thousands of resumes each would be a line, and the picture nothing else.
_LINES_DRAWN = 200

_PANELS = {
    "loss": ("loss", 3.0),
    "grad_norm": ("gradient norm", 2.0),
    "step_time_s": ("step time (s)", 1.5),
}


def check(path: Path) -> None:
    """Say what will be in the way before the work, not after it.

    Raises:
        LogError: matplotlib is not installed, or the name is of another kind of file.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise LogError(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise LogError('matplotlib is not installed: pip install "health-exporter[plot]"')


def save(
    path: Path,
    curve: Curve,
    events: Iterable[Mapping[str, Any]],
    *,
    title: str,
    last_step: int | None = None,
) -> None:
    """Draw a run.

    Args:
        path: A .png, .svg or .pdf file.
        curve: The curves.
        events: What happened, as `Event.as_dict` gives it.
        title: Stands above the picture.
        last_step: Where the steps end, where the curves do not say.

    Raises:
        LogError: matplotlib is not installed, or the file cannot be written.
    """
    check(path)
    segments = curve.segments()
    happened = list(events)
    names = [name for name in _PANELS if name == "loss" or _has(segments, happened, name)]
    figure, axes = _panels(names)
    legend: dict[str, Any] = {}
    for name, panel in zip(names, axes, strict=True):
        _draw(panel, name, segments, happened, legend)
    axes[-1].set_xlabel("step")
    axes[-1].set_xlim(*_ends(segments, happened, last_step))
    figure.suptitle(title, fontsize="medium")
    _add_legend(figure, legend)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise LogError(f"--plot {path} cannot be written: {error.strerror or error}") from error


def _panels(names: Sequence[str]) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 1.6 + sum(1.1 * _PANELS[name][1] for name in names)
    figure = Figure(figsize=(11.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(names),
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": [_PANELS[name][1] for name in names]},
    )
    return figure, axes[:, 0]


def _ends(
    segments: Sequence[Segment], events: Sequence[Mapping[str, Any]], last_step: int | None
) -> tuple[float, float]:
    """First and last step of the picture, with some room."""
    steps = [float(step) for segment in segments for step in segment.step[[0, -1]]]
    if last_step is not None:
        steps += [0.0, float(last_step)]
    for event in events:
        steps += [float(event["first_step"]), float(event.get("last_step", event["first_step"]))]
    first, last = (min(steps), max(steps)) if steps else (0.0, 1.0)
    room = 0.01 * (last - first) or 0.5
    return first - room, last + room


def _has(segments: Sequence[Segment], events: Sequence[Mapping[str, Any]], name: str) -> bool:
    if any((segment.high[name] > 0.0).any() for segment in segments):
        return True
    marks = {kind for kind, mark in _MARKS.items() if mark.panel == name}
    return any(event["kind"] in marks for event in events)


def _draw(
    panel: Axes,
    name: str,
    segments: Sequence[Segment],
    events: Sequence[Mapping[str, Any]],
    legend: dict[str, Any],
) -> None:
    panel.set_ylabel(_PANELS[name][0])
    panel.grid(visible=True, alpha=0.25, linewidth=0.6)
    panel.margins(x=0.01)
    _scale(panel, name, segments, events)
    if name == "loss":
        _draw_band(panel, segments, legend)
    for segment in segments:
        steps, values = _zigzag(segment, name)
        few = len(steps) < 60
        (line,) = panel.plot(
            steps, values, color=_BLUE, linewidth=0.9, marker="." if few else "", zorder=3
        )
        if name == "loss":
            legend.setdefault("logged value", line)
    _draw_lines(panel, events, legend)
    for kind, mark in _MARKS.items():
        if mark.panel == name:
            _draw_marks(panel, mark, [e for e in events if e["kind"] == kind], legend)


def _draw_band(panel: Axes, segments: Sequence[Segment], legend: dict[str, Any]) -> None:
    """The baseline, and above it all that would not have been a spike."""
    for segment in segments:
        known = np.isfinite(segment.edge)
        if not known.any():
            continue
        steps = segment.step
        band = panel.fill_between(
            steps, segment.baseline, segment.edge, where=known, color=_SKY, alpha=0.22,
            linewidth=0.0, zorder=1,
        )  # fmt: skip
        (line,) = panel.plot(steps, segment.baseline, color=_ORANGE, linewidth=1.3, zorder=4)
        legend.setdefault("baseline", line)
        legend.setdefault("baseline to spike threshold", band)


def _zigzag(segment: Segment, name: str) -> tuple[Any, Any]:
    """A line through the smallest and the largest value of each column."""
    low, high = segment.low[name], segment.high[name]
    if np.array_equal(low, high, equal_nan=True):
        return segment.step, low
    return np.repeat(segment.step, 2), np.column_stack([low, high]).ravel()


def _scale(
    panel: Axes,
    name: str,
    segments: Sequence[Segment],
    events: Sequence[Mapping[str, Any]],
) -> None:
    lows = np.concatenate([s.low[name] for s in segments] or [np.array([])])
    highs = np.concatenate([s.high[name] for s in segments] or [np.array([])])
    known = np.isfinite(highs)
    if not known.any():
        return
    lows, highs = lows[known], highs[known]
    lowest, highest, middle = lows.min(), highs.max(), float(np.median(highs))
    if name == "grad_norm" and highest > 0.0:
        panel.set_yscale("log", nonpositive="mask")
        panel.set_ylabel("gradient norm (log)")
        _label_log(panel, lowest, highest)
    elif highest > _WIDE * abs(middle) and highest > 0.0:
        if lowest > 0.0:
            panel.set_yscale("log")
            panel.set_ylabel({"loss": "loss (log)"}.get(name, "step time (s, log)"))
            _label_log(panel, lowest, highest)
        elif name == "loss":
            panel.set_yscale("symlog", linthresh=max(abs(middle), 1e-3))
            panel.set_ylabel("loss (symmetric log)")
    else:
        # The band may be wide where little is known yet; the picture is of the loss.
        room = 0.06 * (highest - lowest) or 0.05 * abs(highest) or 1.0
        panel.set_ylim(lowest - room, highest + 2.0 * room)


def _label_log(panel: Axes, lowest: float, highest: float) -> None:
    """Plain numbers, and between the powers of ten as many as there is room for."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_formatter(plain)
    if highest < 100.0 * max(lowest, 1e-300):
        panel.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        panel.yaxis.set_minor_formatter(plain)
    else:
        panel.yaxis.set_minor_formatter(NullFormatter())


def _draw_lines(panel: Axes, events: Sequence[Mapping[str, Any]], legend: dict[str, Any]) -> None:
    for kind, (label, style, colour) in _LINES.items():
        steps = [event["first_step"] for event in events if event["kind"] == kind]
        for step in steps[:_LINES_DRAWN]:
            line = panel.axvline(step, color=colour, linestyle=style, linewidth=1.0, alpha=0.7)
            legend.setdefault(label, line)


def _draw_marks(
    panel: Axes, mark: _Mark, events: Sequence[Mapping[str, Any]], legend: dict[str, Any]
) -> None:
    """Each event at its value; what is no number, at the panel's upper edge.

    Where an event lasts, its time is shaded.
    """
    for event in events[:_LINES_DRAWN]:
        if event.get("last_step", 0) > event["first_step"]:
            panel.axvspan(
                event["first_step"], event["last_step"], color=mark.colour, alpha=0.08, linewidth=0
            )
    inside = [(event["first_step"], _finite(event)) for event in events]
    points = [(step, value) for step, value in inside if value is not None]
    edge = [step for step, value in inside if value is None]
    style: dict[str, Any] = {
        "marker": mark.shape,
        "s": 48,
        "facecolor": mark.colour,
        "edgecolor": "white",
        "linewidth": 0.7,
        "zorder": 6,
        "clip_on": False,
    }
    if points:
        steps, values = zip(*points, strict=True)
        legend.setdefault(mark.label, panel.scatter(steps, values, **style))
    if edge:
        across = panel.get_xaxis_transform()  # steps along, share of the panel's height up
        drawn = panel.scatter(edge, [1.0] * len(edge), transform=across, **style)
        legend.setdefault(mark.label, drawn)


def _finite(event: Mapping[str, Any]) -> float | None:
    value = strict_json.number(event.get("value"))
    # What a speed drop is judged by is no step time; it is marked at the edge.
    if event["kind"] == "mfu_drop" or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return float(value)


def _add_legend(figure: Figure, legend: Mapping[str, Any]) -> None:
    """Below the panels, where it hides nothing."""
    if legend:
        figure.legend(
            list(legend.values()),
            list(legend),
            loc="outside lower center",
            ncols=min(5, len(legend)),
            fontsize="small",
            frameon=False,
        )
