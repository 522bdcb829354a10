"""The wheel as a trainer's environment gets it: with what it requires, and nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

# Serves one step and prints what a scrape saw, and which of the extras could be imported.
SERVE_ONE_STEP = """
import importlib.util, json, urllib.request
from health_exporter import HealthExporter

with HealthExporter(run="wheel", rank=0, world_size=1, port=0, linger_s=0) as exporter:
    exporter.observe_step(1, 2.5)
    page = urllib.request.urlopen(exporter.url, timeout=10).read().decode()

extras = ("torch", "opentelemetry", "matplotlib")
print(json.dumps({
    "page": page,
    "extras": [name for name in extras if importlib.util.find_spec(name)],
}))
"""


def _required(requirements: Iterable[str]) -> set[str]:
    """Names of the distributions that `requirements` bring with them, without any extra."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in found:
            found.add(requirement.name)
            needs = importlib.metadata.requires(requirement.name) or ()
            waiting += [Requirement(text) for text in needs]
    return found


def _link(distribution: str, site_packages: Path) -> None:
    """Lends `distribution`, as installed for the tests, to another environment."""
    source = importlib.metadata.distribution(distribution)
    for top in {file.parts[0] for file in source.files or ()} - {"..", "__pycache__"}:
        if not (site_packages / top).exists():
            (site_packages / top).symlink_to(Path(str(source.locate_file(top))))


@pytest.fixture(scope="module")
def trainer_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its requirements alone."""
    folder = tmp_path_factory.mktemp("trainer")
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60
    )
    python = folder / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", where], check=True, capture_output=True, timeout=60)
    site_packages = Path(found.stdout.decode().strip())

    with zipfile.ZipFile(folder / built.stdout.decode().strip()) as wheel:
        wheel.extractall(site_packages)
    [metadata] = importlib.metadata.distributions(name="health-exporter", path=[str(site_packages)])
    for distribution in _required(metadata.requires or ()):
        _link(distribution, site_packages)
    return python


def test_the_wheel_serves_metrics_where_only_its_requirements_are_installed(
    trainer_python: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [trainer_python, "-c", SERVE_ONE_STEP],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)

    assert printed["extras"] == []
    assert re.search(r'^training_health_loss\{.*run="wheel".*\} 2\.5$', printed["page"], re.M)


def test_the_console_script_of_the_wheel_explains_itself(trainer_python: Path) -> None:
    call = "import sys; sys.argv = ['health-exporter', '--help']; sys.exit(main())"

    done = subprocess.run(
        [trainer_python, "-c", f"from health_exporter.cli import main; {call}"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
