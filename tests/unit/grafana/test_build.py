"""The committed dashboards are those that the generator writes."""

from __future__ import annotations

import sys

import pytest

from tests.unit.grafana.dashboard_file import FOLDER, NAMES

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11"
)


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    """Text by file name, made anew."""
    from grafana import build

    return {name: build.render(each) for name, each in build.dashboards().items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_dashboard_is_what_the_generator_writes(name, rendered):
    committed = (FOLDER / f"{name}.json").read_text(encoding="utf-8")

    assert committed == rendered[f"{name}.json"], "run `python -m grafana.build`"


def test_no_dashboard_is_committed_that_the_generator_does_not_know(rendered):
    assert {path.name for path in FOLDER.iterdir()} == set(rendered)


def test_checking_tells_a_changed_dashboard(tmp_path, capsys):
    from grafana import build

    build.main(["--out", str(tmp_path)])
    assert build.main(["--out", str(tmp_path), "--check"]) == 0
    (tmp_path / "run.json").write_text("{}")

    assert build.main(["--out", str(tmp_path), "--check"]) == 1
    assert "run.json" in capsys.readouterr().err
