from __future__ import annotations

import json
import math

import pytest

from health_exporter.core import strict_json


@pytest.mark.parametrize(
    ("value", "name"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_non_finite_numbers_have_names(value, name):
    assert strict_json.encode(value) == name
    assert strict_json.number(name) == pytest.approx(value, nan_ok=True)


def test_they_are_found_however_deep_they_are():
    value = {"a": [1.0, {"b": (math.inf, 2)}], "c": math.nan}
    encoded = strict_json.encode(value)
    assert encoded == {"a": [1.0, {"b": ["Infinity", 2]}], "c": "NaN"}
    json.dumps(encoded, allow_nan=False)


@pytest.mark.parametrize("value", [1.5, 0.0, -3, True, None, "text", "nan"])
def test_anything_else_stays_as_it_is(value):
    assert strict_json.encode(value) is value
    assert strict_json.number(value) is value
