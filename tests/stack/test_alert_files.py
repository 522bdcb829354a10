"""The shipped files, as promtool and amtool see them."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack.prometheus_server import require_tool

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "alerts"
RULE_FILES = sorted((ALERTS / "rules").glob("*.yml"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def alerting_rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULE_FILES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = run(
        require_tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "path", sorted((ALERTS / "tests").glob("*.yml")), ids=lambda path: str(path.stem)
)
def test_the_rules_pass_their_tests(path: Path) -> None:
    done = run(require_tool("promtool"), "test", "rules", path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_its_configuration_with_every_discovery(tmp_path: Path) -> None:
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


def test_alertmanager_takes_its_configuration_with_every_receiver(tmp_path: Path) -> None:
    text = (ALERTS / "alertmanager.yml").read_text()
    uncommented = tmp_path / "alertmanager.yml"
    uncommented.write_text(re.sub(r"^    # (?=  |\w+_configs:)", "    ", text, flags=re.M))
    assert "slack_configs" in str(yaml.safe_load(uncommented.read_text()))

    for path in (ALERTS / "alertmanager.yml", uncommented):
        done = run(require_tool("amtool"), "check-config", path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", alerting_rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_routed_by_its_severity(rule: dict[str, Any]) -> None:
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


def test_an_unknown_alert_is_a_ticket() -> None:
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
