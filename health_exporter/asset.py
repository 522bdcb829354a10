"""What is shipped beside the code for the servers around a trainer: rules, dashboards."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from health_exporter.errors import HealthExporterError

NAMES = ("alerts", "grafana")
"""Folders of the repository that the wheel carries as `health_exporter/assets`."""

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


class AssetError(HealthExporterError):
    """The assets cannot be found or written."""


def folder(name: str) -> Path:
    """Where the asset folder `name` is: in the installed package, or in the checkout.

    Raises:
        AssetError: In neither.
    """
    package = Path(__file__).resolve().parent
    for place in (package / "assets" / name, package.parent / name):
        if place.is_dir():
            return place
    raise AssetError(f"{name} is not installed with the package")


def write(target: Path, *, force: bool = False) -> list[Path]:
    """Copy all assets into `target`.

    Args:
        target: Made if it does not exist.
        force: Overwrite files that have been changed.

    Returns:
        The folders written.

    Raises:
        AssetError: Files there differ from the shipped ones, or cannot be written.
    """
    found = [name for name in NAMES if _is_there(name)]
    changed = [] if force else [path for name in found for path in _changed(name, target)]
    if changed:
        listed = ", ".join(str(path) for path in changed[:5]) + (", ..." if changed[5:] else "")
        raise AssetError(f"changed there, and not overwritten without --force: {listed}")
    try:
        for name in found:
            shutil.copytree(
                folder(name),
                target / name,
                dirs_exist_ok=True,
                ignore=_LEFT_OUT,
                copy_function=shutil.copyfile,
            )
    except OSError as error:  # shutil.Error among them
        raise AssetError(f"{target} cannot be written: {error}") from error
    return [target / name for name in found]


def _is_there(name: str) -> bool:
    try:
        folder(name)
    except AssetError:
        return False
    return True


def _changed(name: str, target: Path) -> list[Path]:
    source = folder(name)
    changed = []
    for shipped in sorted(source.rglob("*")):
        there = target / name / shipped.relative_to(source)
        if shipped.is_file() and there.is_file() and not filecmp.cmp(shipped, there, shallow=False):
            changed.append(there)
    return changed
