"""Plots of any numbers are well-formed, inside their frame, and told in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health_exporter.export.page_plot import Band, Line, Mark, Plot, draw
from health_exporter.export.page_scale import HEIGHT, WIDTH
from tests.unit.export.page_scene import words

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def figure(plot: Plot) -> ET.Element:
    return ET.fromstring(draw(plot, "p"))


def line(*values: float) -> Line:
    return Line(label="loss", style="c1", segments=[[(x, v, v, v) for x, v in enumerate(values)]])


def path(drawn: ET.Element, style: str) -> str:
    found = next(e for e in drawn.iter("path") if e.attrib["class"] == style)
    return found.attrib["d"]


def heights(d: str) -> list[float]:
    return [float(y) for y in re.findall(r"[\d.]+ ([\d.]+)", d)]


@st.composite
def plots(draw_from: st.DrawFn) -> Plot:
    values = draw_from(st.lists(st.tuples(FINITE, FINITE, FINITE).map(sorted), max_size=20))
    points = [(float(x), v[0], v[2], v[1]) for x, v in enumerate(values)]
    cut = draw_from(st.integers(0, len(points)))
    band = [(x, low, abs(high)) for x, low, high, _ in points]
    marks = draw_from(st.lists(st.tuples(st.integers(0, 30), FINITE | st.none()), max_size=4))
    return Plot(
        title="t",
        x=(0.0, float(draw_from(st.sampled_from([0, 1, len(points), 10**12])))),
        lines=[Line(label="l", style="c1", segments=[points[:cut], points[cut:]])],
        band=Band(label="b", segments=[band]),
        marks=[Mark(label="m", x=x, y=y, to=x + 3) for x, y in marks],
        cuts=[float(cut)],
        log=draw_from(st.sampled_from([None, True, False])),
    )


def coordinates(drawn: ET.Element) -> Iterator[tuple[float, float]]:
    for shape in drawn.iter("path"):
        if shape.attrib["class"].split()[0] in ("line", "area", "band"):
            for x, y in re.findall(r"([-\d.e+]+) ([-\d.e+]+)", shape.attrib["d"]):
                yield float(x), float(y)


@settings(max_examples=60, deadline=None)
@given(plots())
def test_any_numbers_are_drawn_inside_the_frame(plot: Plot):
    drawn = figure(plot)

    for x, y in coordinates(drawn):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert "nan" not in draw(plot, "p")


def test_larger_values_are_higher():
    ys = heights(path(figure(Plot(title="t", x=(0, 2), lines=[line(1, 3, 2)])), "line c1"))

    assert ys[1] < ys[2] < ys[0]


def test_a_spike_makes_the_scale_logarithmic():
    quiet = Plot(title="loss", x=(0, 9), lines=[line(*[2.0] * 9, 3.0)])
    spiked = Plot(title="loss", x=(0, 9), lines=[line(*[2.0] * 9, 60.0)])

    assert words(figure(quiet).find("figcaption")) == "loss"
    assert words(figure(spiked).find("figcaption")) == "loss (log)"


def test_resumes_are_not_bridged():
    segments = [
        [(0.0, 1.0, 1.0, 1.0), (1.0, 2.0, 2.0, 2.0)],
        [(1.0, 5.0, 5.0, 5.0), (2.0, 4.0, 4.0, 4.0)],
    ]
    plot = Plot(title="t", x=(0, 2), lines=[Line(label="l", style="c1", segments=segments)])

    assert path(figure(plot), "line c1").count("M") == 2


def test_what_is_no_number_is_a_cross_and_what_is_one_a_triangle():
    marks = [Mark(label="spike", x=1, y=3.0), Mark(label="NaN", x=2, y=None)]
    drawn = figure(Plot(title="t", x=(0, 2), lines=[line(1, 3, 2)], marks=marks))

    kinds = {e.attrib["class"]: words(e) for e in drawn.iter("path") if e.find("title") is not None}
    assert kinds == {"mark": "spike, step 1", "cross": "NaN, step 2"}


def test_it_is_told_in_words():
    told = words(figure(Plot(title="t", x=(0, 2), lines=[line(1, 3, 2)])).find(".//desc"))

    assert told == "steps 0 to 2; loss: lowest 1, highest 3, last 2"


def test_no_value_is_no_empty_frame():
    assert words(figure(Plot(title="MFU", x=(0, 1), lines=[line()]))) == "MFU no value yet".replace(
        "MFU no", "MFUno"
    )


@pytest.mark.parametrize(
    ("values", "labels"),
    [((0.0, 10.0), {"0", "5", "10"}), ((0.9, 1.4), {"1", "1.2", "1.4"}), ((2.0, 2.0), {"2"})],
)
def test_ticks_are_round(values: tuple[float, ...], labels: set[str]):
    drawn = figure(Plot(title="t", x=(0, 1), lines=[line(*values)]))
    found = {words(e) for e in drawn.iter("text") if e.attrib["class"] == "y"}

    assert labels <= found
