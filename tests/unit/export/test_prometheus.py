"""The metrics page of hand-made snapshots."""

from __future__ import annotations

import math

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from health_exporter.catalog import CATALOG
from health_exporter.core.anomaly import KINDS
from health_exporter.export.prometheus import MetricsPage
from health_exporter.snapshot import Snapshot
from tests.unit.export.golden_page import OPENMETRICS, SNAPSHOT, SNAPSHOTS, TEXT, path, render

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    families = text_parser.text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def names(name: str) -> set[str]:
    return {sample for sample, _ in samples(render(name, TEXT))}


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS], ids=["text", "openmetrics"])
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_page_is_as_checked_in(name: str, accept: str):
    """Changed on purpose? `python -m tests.unit.export.golden_page` writes the files anew."""
    assert render(name, accept) == path(name, accept).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_openmetrics_says_the_same(name: str):
    body, content_type = MetricsPage(lambda: SNAPSHOTS[name]).render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = list(openmetrics_parser.text_string_to_metric_families(body.decode()))
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
        and not sample.name.startswith(("process_", "python_"))
    }
    expected = samples(render(name, TEXT))
    assert found.keys() == {key for key in expected if not key[0].endswith("_created")}
    for key, value in found.items():
        assert value == expected[key] or (math.isnan(value) and math.isnan(expected[key]))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html", "text/plain"),
        ("nonsense;;;q=", "text/plain"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
            "application/openmetrics-text",
        ),
    ],
)
def test_the_format_is_negotiated(accept: str, content_type: str):
    body, given = MetricsPage(lambda: SNAPSHOT).render(accept)

    assert given.startswith(content_type)
    assert body.decode().endswith("# EOF\n") == ("openmetrics" in content_type)


def test_rank_0_has_every_metric_of_the_catalogue():
    optional = {"training_health_rank_exception_info", "training_health_rank_otlp_export_failures"}
    families = text_parser.text_string_to_metric_families(render("rank_0", TEXT))
    found = {family.name for family in families if not family.name.endswith("_created")}

    assert found == {metric.name.removesuffix("_total") for metric in CATALOG} - optional


def test_another_rank_has_its_own_only():
    families = text_parser.text_string_to_metric_families(render("rank_3", TEXT))
    found = {family.name for family in families}

    assert all(name.startswith("training_health_rank_") for name in found)
    assert "training_health_rank_exception_info" in found


def test_what_is_unknown_is_absent():
    found = names("rank_0_before_the_first_step")
    for name in (
        "step",
        "loss",
        "grad_norm",
        "baseline",
        "spread",
        "z_score",
        "mfu_ratio",
        "model_flops_per_second",
        "peak_flops_per_second",
        "goodput_ratio",
        "tokens_total",
        "last_anomaly_step",
        "last_anomaly_timestamp_seconds",
        "receipt_timestamp_seconds",
        "rank_step",
        "rank_store_connected",
        "suspect_rank",
    ):
        assert f"training_health_{name}" not in found


def test_counters_are_there_at_0_from_the_first_scrape():
    found = samples(render("rank_0_before_the_first_step", TEXT))
    run = ("run", "llama\n8b")
    for kind in KINDS:
        assert found["training_health_anomalies_total", (("kind", kind), run)] == 0
    for name in ("steps", "lost_steps", "restarts", "receipt_write_failures"):
        assert found[f"training_health_{name}_total", (run,)] == 0
    assert found["training_health_step_duration_seconds_count", (run,)] == 0


def test_a_loss_that_is_no_number_is_shown_as_such():
    found = samples(render("rank_0_with_a_nan_loss", TEXT))
    run = ("run", "llama\n8b")

    assert math.isnan(found["training_health_loss", (run,)])
    assert found["training_health_grad_norm", (run,)] == math.inf
    assert ("training_health_z_score", (run, ("signal", "loss"))) not in found


def test_exactly_one_state_is_set():
    found = samples(render("rank_0", TEXT))
    states = {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "training_health_run_state"
    }
    assert states == {
        "starting": 0,
        "running": 1,
        "finished": 0,
        "terminated": 0,
        "interrupted": 0,
        "failed": 0,
    }


def test_buckets_are_cumulative():
    found = samples(render("rank_0", TEXT))
    buckets = [
        value
        for (name, _), value in found.items()
        if name == "training_health_step_duration_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 1250
    assert found["training_health_step_duration_seconds_count", (("run", "llama\n8b"),)] == 1250


def test_the_snapshot_is_read_once_a_scrape():
    reads = 0

    def read() -> Snapshot:
        nonlocal reads
        reads += 1
        return SNAPSHOT

    page = MetricsPage(read)
    assert reads == 0
    page.render("")
    assert reads == 1


def test_the_process_is_on_the_page():
    body, _ = MetricsPage(lambda: SNAPSHOT).render("")

    assert b"\nprocess_resident_memory_bytes " in body
    assert b"\npython_info{" in body
