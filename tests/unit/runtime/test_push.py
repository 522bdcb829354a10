"""Whether metrics are pushed, by settings and environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from health_exporter import HealthExporter
from health_exporter.errors import SettingsError
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.push import make_push
from health_exporter.runtime.settings import Settings
from health_exporter.snapshot import Snapshot
from tests.unit.export.otlp_sample import full_snapshot

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


class Stub:
    """An exporter, as far as it is pushed."""

    def __init__(self, **settings: bool | None) -> None:
        self.settings = Settings(run="r", **settings)  # type: ignore[arg-type]
        self.identity = Identity(rank=0, local_rank=0, world_size=1, host="h", attempt=0)

    def snapshot(self) -> Snapshot:
        return full_snapshot()

    def scraped(self) -> None:
        pass


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"]
)
def test_an_endpoint_in_the_environment_turns_it_on(name: str):
    assert make_push(Stub(), {name: "http://127.0.0.1:1"}) is not None


@pytest.mark.parametrize(
    ("otlp", "environ", "expected"),
    [
        (None, {}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, False),
        (True, {}, True),
        (False, ENDPOINT, False),
        (None, {**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, False),
        (None, {**ENDPOINT, "OTEL_METRICS_EXPORTER": "console,otlp"}, True),
        (True, {**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, True),
        (True, {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_what_turns_it_on(otlp: bool | None, environ: dict[str, str], expected: bool):
    assert (make_push(Stub(otlp=otlp), environ) is not None) == expected


def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("health_exporter.export.otlp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics.export", None)


def test_missing_extra_is_an_error_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    without_the_extra(monkeypatch)
    with pytest.raises(SettingsError, match=r"pip install 'health-exporter\[otel\]'"):
        make_push(Stub(otlp=True), {})


def test_missing_extra_is_a_warning_where_the_environment_is_for_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    without_the_extra(monkeypatch)
    assert make_push(Stub(), ENDPOINT) is None
    assert "pip install 'health-exporter[otel]'" in caplog.text


def test_wrong_variable_is_an_error_or_a_warning(caplog: pytest.LogCaptureFixture):
    wrong = {**ENDPOINT, "OTEL_METRIC_EXPORT_INTERVAL": "often"}
    with pytest.raises(SettingsError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        make_push(Stub(otlp=True), wrong)
    assert make_push(Stub(), wrong) is None
    assert "no metrics are pushed: OTLP: OTEL_METRIC_EXPORT_INTERVAL" in caplog.text


def test_wrong_variable_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "no url")
    with pytest.raises(SettingsError, match="http"):
        HealthExporter(run="r", port=None, otlp=True, receipt_dir=tmp_path / "receipts")
    assert not (tmp_path / "receipts").exists()


@pytest.mark.parametrize("preferred", ["delta", "LowMemory"])
def test_other_temporality_is_not_followed_with_a_warning(
    preferred: str, caplog: pytest.LogCaptureFixture
):
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    assert make_push(Stub(), {**ENDPOINT, name: preferred}) is not None
    assert f"{name}={preferred.lower()} is not followed" in caplog.text


def test_interval_that_the_rules_are_not_made_for_is_warned_of(caplog: pytest.LogCaptureFixture):
    make_push(Stub(), {**ENDPOINT, "OTEL_METRIC_EXPORT_INTERVAL": "60000"})
    assert "OTEL_METRIC_EXPORT_INTERVAL=60000 is longer than the 15 s" in caplog.text


def test_no_warning_where_nothing_is_wrong(caplog: pytest.LogCaptureFixture):
    make_push(Stub(), {**ENDPOINT, "OTEL_METRIC_EXPORT_INTERVAL": "5000"})
    assert caplog.text == ""


def test_events_are_off_by_default():
    push, with_events = make_push(Stub(), ENDPOINT), make_push(Stub(otlp_events=True), ENDPOINT)
    assert push is not None
    assert push.events is None
    assert with_events is not None
    assert with_events.events is not None


def test_the_global_meter_provider_is_not_touched():
    from opentelemetry import metrics

    before = metrics.get_meter_provider()
    make_push(Stub(), ENDPOINT)
    assert metrics.get_meter_provider() is before


def test_the_extra_is_not_imported_where_nothing_is_pushed(tmp_path: Path):
    script = (
        "import sys; from health_exporter import HealthExporter\n"
        "HealthExporter(run='r', port=None, receipt_dir=sys.argv[1], linger_s=0).close()\n"
        "sys.exit(sum(name in sys.modules for name in ('opentelemetry', 'requests', 'google')))\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", script, tmp_path], cwd=root, timeout=60, check=True)
