"""The dashboards are what Grafana's own schemas say that a dashboard is."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.unit.grafana.dashboard_file import NAMES, load, panels

SCHEMAS = Path(__file__).parent / "schema"


def violations(schema_name: str, value: object, definition: str = "") -> list[str]:
    """What the schema, or one definition of it, does not allow in `value`."""
    schema = json.loads((SCHEMAS / f"{schema_name}.json").read_text(), object_hook=_anything)
    if definition:
        schema["$ref"] = f"#/definitions/{definition}"
    found = jsonschema.Draft7Validator(schema).iter_errors(value)
    return [f"{list(error.absolute_path)}: {error.message[:200]}" for error in found]


def _anything(schema: dict) -> dict:
    """The generator of the schemas writes an object of anything where Grafana has anything."""
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    return {} if schema == {"type": "object", "additionalProperties": {}} else schema


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_grafanas_schema(name):
    assert violations("dashboard", load(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_refuses_a_field_that_grafana_does_not_know(name):
    assert violations("dashboard", {**load(name), "titel": "x"}) != []


@pytest.mark.parametrize("name", NAMES)
def test_a_panels_options_have_the_schema_of_its_type(name):
    for panel in panels(load(name)):
        schema = panel["type"].replace("-", "")
        assert violations(schema, panel["options"], "Options") == [], panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_a_panels_own_field_settings_have_the_schema_of_its_type(name):
    for panel in panels(load(name)):
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom is not None:
            definition = "GraphFieldConfig" if panel["type"] == "timeseries" else "FieldConfig"
            schema = panel["type"].replace("-", "")
            assert violations(schema, custom, definition) == [], panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_a_panels_queries_are_prometheus_queries(name):
    for panel in panels(load(name)):
        for target in panel["targets"]:
            assert violations("prometheus", target) == [], panel["title"]
