"""The catalogue against the names that dashboards and rules are written for."""

from __future__ import annotations

import itertools

import pytest

from health_exporter.catalog import CATALOG, STEP_SECONDS_BOUNDS, Metric, markdown_table

# Name to type and labels beside those of the scope.
OF_RUN = {
    "run_info": (
        "gauge",
        "model framework world_size version device flops_convention",
    ),
    "run_state": ("gauge", "state"),
    "run_start_timestamp_seconds": ("gauge", ""),
    "step": ("gauge", ""),
    "steps_total": ("counter", ""),
    "lost_steps_total": ("counter", ""),
    "tokens_total": ("counter", ""),
    "loss": ("gauge", ""),
    "grad_norm": ("gauge", ""),
    "baseline": ("gauge", "signal"),
    "spread": ("gauge", "signal"),
    "z_score": ("gauge", "signal"),
    "z_score_threshold": ("gauge", "signal"),
    "mfu_ratio": ("gauge", ""),
    "model_flops_per_second": ("gauge", ""),
    "peak_flops_per_second": ("gauge", ""),
    "step_duration_seconds": ("histogram", ""),
    "anomalies_total": ("counter", "kind"),
    "last_anomaly_timestamp_seconds": ("gauge", "kind"),
    "last_anomaly_step": ("gauge", "kind"),
    "restarts_total": ("counter", ""),
    "continuity_ok": ("gauge", ""),
    "goodput_ratio": ("gauge", ""),
    "world_size": ("gauge", ""),
    "ranks": ("gauge", "status"),
    "suspect_rank": ("gauge", "rank host reason"),
    "rejected_observations_total": ("counter", "reason"),
    "receipt_write_failures_total": ("counter", ""),
    "receipt_timestamp_seconds": ("gauge", ""),
}
OF_RANK = {
    "rank_info": ("gauge", "host local_rank"),
    "rank_state": ("gauge", "state"),
    "rank_heartbeat_timestamp_seconds": ("gauge", ""),
    "rank_step": ("gauge", ""),
    "rank_progress_total": ("counter", ""),
    "rank_phase_seconds_total": ("counter", "phase"),
    "rank_timeout_seconds": ("gauge", ""),
    # Beside those that were agreed on.
    "rank_store_connected": ("gauge", ""),
    "rank_exception_info": ("gauge", "exception"),
    "rank_otlp_export_failures_total": ("counter", ""),
}

metrics = pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)


@pytest.mark.parametrize(("scope", "expected"), [("run", OF_RUN), ("rank", OF_RANK)])
def test_names_types_and_labels(scope: str, expected: dict[str, tuple[str, str]]):
    found = {
        metric.name.removeprefix("training_health_"): (metric.kind, " ".join(metric.labels))
        for metric in CATALOG
        if metric.scope == scope
    }
    assert found == expected


def test_no_name_is_declared_twice():
    assert len({metric.name for metric in CATALOG}) == len(CATALOG)


@metrics
def test_only_counters_end_in_total(metric: Metric):
    assert metric.name.endswith("_total") == (metric.kind == "counter")


@metrics
def test_the_name_says_the_unit(metric: Metric):
    """Base units, as the translation from OpenTelemetry's names writes them."""
    words = {"s": "_seconds", "1": "_ratio", "{flop}/s": "_flops_per_second"}
    name = metric.name.removesuffix("_total")
    for unit, word in words.items():
        if metric.unit == unit:
            assert name.endswith(word)
        elif metric.unit not in words:
            assert not name.endswith(word)
    assert metric.unit in words or metric.unit == "" or metric.unit.startswith("{")


@metrics
def test_the_name_is_well_made(metric: Metric):
    assert metric.name.startswith("training_health_")
    assert metric.name == metric.name.lower()
    assert not {"__", "-", ":"} & set(metric.name)
    for unit in ("_ms", "_milliseconds", "_minutes", "_percent", "_kb", "_mb"):
        assert not metric.name.removesuffix("_total").endswith(unit)


@metrics
def test_the_help_is_one_sentence(metric: Metric):
    assert metric.help.endswith(".")
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert ". " not in metric.help
    assert "\n" not in metric.help
    assert "|" not in metric.help


@metrics
def test_the_scope_gives_the_first_labels(metric: Metric):
    assert metric.all_labels[:1] == ("run",)
    assert (metric.all_labels[1:2] == ("rank",)) == (
        metric.scope == "rank" or "rank" in metric.labels[:1]
    )
    assert len(set(metric.all_labels)) == len(metric.all_labels)
    assert not {"le", "quantile", "instance", "job"} & set(metric.all_labels)


def test_bounds_of_the_step_time():
    assert list(STEP_SECONDS_BOUNDS) == sorted(set(STEP_SECONDS_BOUNDS))
    between = [b for b in STEP_SECONDS_BOUNDS if 0.1 <= b <= 100]
    assert all(b / a <= 1.7 for a, b in itertools.pairwise(between))
    assert STEP_SECONDS_BOUNDS[0] <= 0.01
    assert STEP_SECONDS_BOUNDS[-1] >= 600


def test_the_table_has_a_row_for_each():
    rows = markdown_table().splitlines()
    assert len(rows) == 2 + len(CATALOG)
    for metric, row in zip(CATALOG, rows[2:], strict=True):
        assert row.startswith(f"| `{metric.name}` | {metric.kind} | run")
        assert row.count("|") == 5
