"""The package as something that is installed: what importing it costs and what it ships."""

from __future__ import annotations

import configparser
import email
import importlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import health_exporter
from health_exporter import asset
from health_exporter.cli import main

ROOT = Path(__file__).parents[2]

# Extras: the package must import where they are not installed.
OPTIONAL = ("torch", "opentelemetry", "matplotlib")


def run_python(code: str, *, folder: Path = ROOT) -> str:
    """What `code` prints in a new interpreter, which must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_imports_where_no_extra_is_installed() -> None:
    block = "".join(f"sys.modules[{name!r}] = None; " for name in OPTIONAL)

    printed = run_python(f"import sys; {block}import health_exporter; print(sorted(dir()))")

    assert "health_exporter" in printed


def test_importing_the_package_imports_no_extra_that_is_installed() -> None:
    printed = run_python("import health_exporter, sys; print(*sys.modules)")

    assert set(OPTIONAL).isdisjoint(printed.split())


def test_importing_the_package_starts_no_thread_and_says_nothing() -> None:
    printed = run_python("import health_exporter, threading; print(threading.active_count())")

    assert printed == "1\n"


@pytest.mark.parametrize("name", health_exporter.__all__)
def test_a_public_name_exists_and_says_what_it_is(name: str) -> None:
    thing = getattr(health_exporter, name)

    if not isinstance(thing, str):
        assert thing.__doc__, f"{name} has no docstring"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of the tree as it stands."""
    folder = tmp_path_factory.mktemp("dist")
    run_python(
        "from hatchling.build import build_sdist, build_wheel; "
        f"build_wheel({str(folder)!r}); build_sdist({str(folder)!r})"
    )
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    [path] = built.glob("*.whl")
    return zipfile.ZipFile(path)


def files_below(folder: str, shipped_as: str) -> set[str]:
    return {
        f"{shipped_as}/{path.relative_to(ROOT / folder)}"
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        # What linters leave does not count.
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    }


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = files_below("health_exporter", "health_exporter")
    for name in asset.NAMES:
        expected |= files_below(name, f"health_exporter/assets/{name}")

    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert "health_exporter/py.typed" in shipped
    assert shipped == expected


def test_the_console_script_calls_a_function_that_exists(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(name).decode())
    module, _, function = scripts["console_scripts"]["health-exporter"].partition(":")

    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("line", "expected"),
    [("--version", 0), ("demo --help", 0), ("demo --steps 0", 2), ("report no-such-folder", 2)],
)
def test_the_package_runs_as_the_console_script_does(
    line: str, expected: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # to which argparse wraps its help
    done = subprocess.run(
        [sys.executable, "-m", "health_exporter", *line.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    try:
        status: object = main(line.split())
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr()
    assert (done.returncode, status) == (expected, expected)
    assert (done.stdout, done.stderr) == (shown.out, shown.err)
    assert "health-exporter" in done.stdout + done.stderr


def test_the_wheel_requires_no_torch_unless_an_extra_is_asked_for(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    requirements = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])

    always = [requirement for requirement in requirements if "extra ==" not in requirement]

    assert any(requirement.startswith("prometheus-client") for requirement in always)
    assert not any(requirement.startswith(OPTIONAL) for requirement in always)


def test_the_wheel_has_the_version_that_the_package_states(built: Path) -> None:
    [path] = built.glob("*.whl")

    assert path.name.startswith(f"health_exporter-{health_exporter.__version__}-")


def test_the_source_distribution_has_the_package_the_licence_and_no_tests(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}

    assert {"health_exporter", "LICENSE", "README.md", "pyproject.toml"} <= top
    assert "tests" not in top


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    # Put together here, so that this file does not find itself.
    paths = tuple(f"/{name}/" for name in ("work", "root", "tmp/hx", "tmp/venv"))
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of the repository's files")

    found = []
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        text = file.read_text(errors="replace") if file.is_file() else ""
        found += [f"{name}: {path}" for path in paths if path in text]

    assert found == []
