"""Texts from outside become text of the page, whatever is in them, and numbers words."""

from __future__ import annotations

import string
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from health_exporter.export.page_text import duration, number, ranges, text
from tests.unit.export.page_scene import Scene, parsed

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        "</style><b>",
        "'\"><img src=x onerror=a>",
        "&amp;",
        "]]>",
        "\ud800",
    ]
)


@given(ANY_TEXT)
def test_text_stays_text_in_an_element_and_in_an_attribute(value: str):
    element = ET.fromstring(f'<p title="{text(value)}">{text(value)}</p>')

    assert len(element) == 0
    assert list(element.attrib) == ["title"]
    text(value).encode()


@given(
    st.text(
        string.printable.replace("\r", "").replace("\x0b", "").replace("\x0c", ""), max_size=500
    )
)
def test_ordinary_text_is_shown_as_it_is(value: str):
    assert (ET.fromstring(f"<p>{text(value)}</p>").text or "") == value


# XML's reader takes CR LF for one character.
@given(st.text(st.characters(exclude_characters="\r"), min_size=1).map(lambda value: 501 * value))
def test_long_text_is_cut(value: str):
    shown = ET.fromstring(f"<p>{text(value)}</p>").text or ""
    assert len(shown) == 500
    assert shown.endswith("…")


class Tags(HTMLParser):
    """The tags that a browser's rules find, where XML's would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(run=ANY_TEXT, host=ANY_TEXT, where=ANY_TEXT, kind=ANY_TEXT, message=ANY_TEXT)
def test_no_text_of_the_run_changes_the_page(run, host, where, kind, message):
    def made(run: str, host: str, where: str, kind: str, message: str) -> str:
        scene = Scene(4, run=run, host=host or "h").train(range(3))
        scene.beat(60, silent=[2], where=where, phase=where)
        sick = scene.html()
        return sick + "\n" + scene.end("failed", kind or "E", message).html()

    plain, hostile = Tags(), Tags()
    plain.feed(made("run", "host", "where", "kind", "message"))
    page = made(run, host, where, kind, message)
    hostile.feed(page)

    assert not set(hostile.found) - set(plain.found)
    page.encode()
    sick, _, failed = page.partition("</html>\n")
    parsed(sick + "</html>")
    parsed(failed.lstrip("\n"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2.34567, "2.346"), (1e-9, "1e-09"), (float("nan"), "NaN"), (float("-inf"), "-infinite")],
)
def test_numbers(value: float, shown: str):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0534, "53.4 ms"),
        (3.21, "3.2 s"),
        (60, "60 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
        (432_000, "5.0 days"),
        (float("inf"), "forever"),
    ],
)
def test_durations(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_neighbours_among_ranks_are_joined():
    assert ranges([0, 3, 4, 8, 9, 10]) == "0, 3, 4, 8 to 10"
    assert ranges(range(0, 100, 2)).endswith("20, 22 and 38 more")
