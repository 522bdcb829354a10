"""The shipped files, as promtool and amtool see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.build import milliseconds
from tests.stack.prometheus_server import require_tool
from tests.stack.server_version import on_both, versions

Done = subprocess.CompletedProcess[str]

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "alerts"
RULE_FILES = sorted((ALERTS / "rules").glob("*.yml"))


TEST_FILES = sorted((ALERTS / "tests").glob("*.yml"))


def run(*command: str | Path) -> Done:
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def alerting_rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULE_FILES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]


@on_both("promtool")
def test_promtool_finds_nothing_wrong_with_the_rules(servers: None) -> None:
    done = run(
        require_tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tested(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, Path], Future[Done]]]:
    """What promtool says, by its folder and the file, of all that are asked for: on all cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = {}
        for item in request.session.items:
            of_it = getattr(item, "function", None) is test_the_rules_pass_their_tests
            if of_it and item.get_closest_marker("skip") is None:
                folder, path = (item.callspec.params[name] for name in ("folder", "path"))  # type: ignore[attr-defined]
                promtool = f"{folder}/promtool" if folder else require_tool("promtool")
                found[folder, path] = pool.submit(run, promtool, "test", "rules", path)
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.stem))
@pytest.mark.parametrize("folder", versions("promtool"))
def test_the_rules_pass_their_tests(
    folder: str, path: Path, tested: dict[tuple[str, Path], Future[Done]]
) -> None:
    done = tested[folder, path].result()

    assert done.returncode == 0, done.stdout + done.stderr


@on_both("promtool")
def test_prometheus_takes_its_configuration_with_every_discovery(
    servers: None, tmp_path: Path
) -> None:
    text = (ALERTS / "prometheus.yml").read_text()
    uncommented = tmp_path / "prometheus.yml"
    uncommented.write_text(re.sub(r"^  # (?=  |- )", "  ", text, flags=re.M))
    (tmp_path / "rules").symlink_to(ALERTS / "rules")
    config = yaml.safe_load(uncommented.read_text())
    assert "kubernetes_sd_configs" in config["scrape_configs"][-1]
    done = run(require_tool("promtool"), "check", "config", uncommented)
    if "field kubernetes_sd_configs not found" in done.stdout + done.stderr:
        # Debian builds Prometheus without it; the relabelling can be checked all the same.
        config["scrape_configs"][-1].pop("kubernetes_sd_configs")
        uncommented.write_text(yaml.safe_dump(config))

    for path in (ALERTS / "prometheus.yml", uncommented):
        done = run(require_tool("promtool"), "check", "config", path)
        assert done.returncode == 0, done.stdout + done.stderr


@on_both("amtool")
def test_alertmanager_takes_its_configuration_with_every_receiver(
    servers: None, tmp_path: Path
) -> None:
    text = (ALERTS / "alertmanager.yml").read_text()
    uncommented = tmp_path / "alertmanager.yml"
    uncommented.write_text(re.sub(r"^    # (?=  |\w+_configs:)", "    ", text, flags=re.M))
    assert "slack_configs" in str(yaml.safe_load(uncommented.read_text()))

    for path in (ALERTS / "alertmanager.yml", uncommented):
        done = run(require_tool("amtool"), "check-config", path)
        assert done.returncode == 0, done.stdout + done.stderr


@on_both("amtool")
@pytest.mark.parametrize("rule", alerting_rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_routed_by_its_severity(servers: None, rule: dict[str, Any]) -> None:
    severity = rule["labels"]["severity"]
    receiver = {"critical": "pagerduty", "warning": "tickets", "info": "watchdog"}[severity]
    labels = [f"{name}={value}" for name, value in rule["labels"].items()]

    done = run(
        require_tool("amtool"),
        "config",
        "routes",
        "test",
        f"--config.file={ALERTS / 'alertmanager.yml'}",
        f"--verify.receivers={receiver}",
        f"alertname={rule['alert']}",
        "run=r",
        *labels,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_watchdog_is_due_again_at_each_interval() -> None:
    routes = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())["route"]["routes"]
    watchdog = next(route for route in routes if route["receiver"] == "watchdog")

    assert milliseconds(watchdog["repeat_interval"]) < milliseconds(watchdog["group_interval"])


@on_both("amtool")
def test_an_unknown_alert_is_a_ticket(servers: None) -> None:
    done = run(
        require_tool("amtool"),
        "config",
        "routes",
        "test",
        f"--config.file={ALERTS / 'alertmanager.yml'}",
        "--verify.receivers=tickets",
        "alertname=Other",
        "severity=page",
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_carries_the_alerts(tmp_path: Path) -> None:
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    with zipfile.ZipFile(tmp_path / built.stdout.decode().strip()) as wheel:
        carried = {
            name.removeprefix("health_exporter/assets/")
            for name in wheel.namelist()
            if name.startswith("health_exporter/assets/alerts/")
        }

    shipped = {
        str(path.relative_to(ROOT))
        for path in ALERTS.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert carried == shipped
