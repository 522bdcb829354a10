"""Colours can be told apart (WCAG AA), and the policy lets in nothing but this style."""

from __future__ import annotations

import base64
import hashlib

import pytest

from health_exporter.export.page_style import COLOURS, HEADERS
from tests.unit.export.page_scene import Scene, parsed, words


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ("fg", "bg"), ("muted", "bg"), ("info", "bg"), ("on-missing", "missing"),
        *((level, f"{level}-bg") for level in ("good", "bad", "warn", "info")),
        *(("fg", f"{level}-bg") for level in ("good", "bad", "warn", "info")),
        *(("on", status) for status in ("alive", "stuck", "dead", "finished")),
    ],
)  # fmt: skip
def test_text_is_legible(theme: str, text: str, ground: str):
    assert contrast(COLOURS[theme][text], COLOURS[theme][ground]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "shape", ["c1", "c2", "centre", "bad", "alive", "stuck", "dead", "finished", "muted"]
)
def test_lines_and_cells_stand_out(theme: str, shape: str):
    assert contrast(COLOURS[theme][shape], COLOURS[theme]["bg"]) >= 3.0


def test_the_policy_knows_the_style_of_the_page():
    style = words(parsed(Scene().html()).find(".//style"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

    policy = HEADERS["Content-Security-Policy"].split("; ")
    assert "default-src 'none'" in policy
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
