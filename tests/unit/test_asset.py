"""Writing out what is shipped for the servers around a trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from health_exporter import asset
from health_exporter.cli import main


def test_the_assets_are_written(tmp_path: Path) -> None:
    assert main(["assets", str(tmp_path / "new" / "folder")]) == 0

    for name in ("alerts/prometheus.yml", "alerts/rules/liveness.yml", "alerts/values.yaml"):
        written = tmp_path / "new" / "folder" / name
        assert written.read_text() == (asset.folder("alerts").parent / name).read_text()


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    asset.write(tmp_path)

    assert tmp_path / "alerts" in asset.write(tmp_path)


def test_what_a_site_has_changed_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asset.write(tmp_path)
    changed = tmp_path / "alerts" / "values.yaml"
    changed.write_text("ours")

    assert main(["assets", str(tmp_path)]) == 2

    assert changed.read_text() == "ours"
    assert str(changed) in capsys.readouterr().err


def test_it_is_overwritten_with_force(tmp_path: Path) -> None:
    asset.write(tmp_path)
    changed = tmp_path / "alerts" / "values.yaml"
    changed.write_text("ours")

    assert main(["assets", "--force", str(tmp_path)]) == 0

    assert changed.read_text() != "ours"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(asset.AssetError, match="cannot be written"):
        asset.write(tmp_path / "file" / "folder")


def test_an_asset_that_is_not_there_is_named() -> None:
    with pytest.raises(asset.AssetError, match="no-such"):
        asset.folder("no-such")
