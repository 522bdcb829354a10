"""The README's tables say what the code says.

`python tests/unit/test_readme.py` rewrites them.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from health_exporter.catalog import markdown_table
from health_exporter.runtime.settings import Settings

README = Path(__file__).parents[2] / "README.md"
SETTINGS = Path(__file__).parents[2] / "health_exporter" / "runtime" / "settings.py"


def settings_table() -> str:
    """Name, default and docstring of each setting."""
    source = SETTINGS.read_text()
    lines = ["| name | default | |", "| --- | --- | --- |"]
    for field in fields(Settings):
        documented = re.search(rf'^    {field.name}: [^\n]*\n    """(.*?)"""', source, re.M | re.S)
        assert documented, f"{field.name} has no docstring"
        default = "required" if field.default is MISSING else f"`{field.default!r}`"
        lines.append(f"| `{field.name}` | {default} | {' '.join(documented[1].split())} |")
    return "\n".join(lines) + "\n"


def with_tables(readme: str) -> str:
    for name, table in (("settings", settings_table()), ("metrics", markdown_table())):
        place = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end -->", readme, re.S)
        assert place, f"README has no place for the table of {name}"
        readme = readme[: place.start(1)] + table + readme[place.end(1) :]
    return readme


def test_readme_tables_are_those_of_the_code():
    assert README.read_text() == with_tables(README.read_text())


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
