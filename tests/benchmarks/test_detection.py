"""What the production preset finds, and what each of its numbers changes.

The synthetic matrix is always printed. Where HEALTH_EXPORTER_CURVES names a folder of labelled
curves (`labels.json`, `jsonl/NAME.jsonl.gz`, and their `score.py`), its score is printed too, and
once more with each number of the preset halved and doubled.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from health_exporter import ModelFlopConfig, TrainingHealthMonitor
from health_exporter.core import production
from tests.unit.core.production_stream import (
    LEVEL,
    NOISE,
    autoregressive,
    episodes,
    gaussian,
    log_normal,
    student_t3,
    watch,
    watch_grad,
)

FOLDER = os.environ.get("HEALTH_EXPORTER_CURVES")  # no test sees the environment: read before
PARTS = ("LOSS", "GRAD", "DRIFT", "RESUME")
Totals = dict[str, float]


@pytest.fixture(scope="module")
def curves() -> pathlib.Path:
    if not FOLDER:
        pytest.skip("HEALTH_EXPORTER_CURVES names no folder of labelled curves")
    return pathlib.Path(FOLDER)


@pytest.fixture(scope="module")
def score(curves: pathlib.Path) -> Callable[[], Totals]:
    """Replays all curves through the preset as it is now."""
    scorer = _load(curves / "score.py")
    labels = json.loads((curves / "labels.json").read_text())
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in curves.glob("jsonl/*.gz"))
    read = scorer.rows
    kept: dict[pathlib.Path, list[Any]] = {}

    def rows(path: pathlib.Path) -> list[Any]:
        if path not in kept:
            kept[path] = list(read(path))
        return kept[path]

    def totals() -> Totals:
        monitor = TrainingHealthMonitor.production
        scores = [scorer.score(name, curves, labels, monitor) for name in names]
        return {key: sum(s[key] for s in scores) for key in scores[0] if key != "name"}

    scorer.rows = rows  # type: ignore[attr-defined]
    return totals


def _load(path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("score", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(totals: Totals) -> str:
    false_loss = 1e5 * totals["loss_false"] / totals["rows"]
    false_grad = 1e5 * totals["grad_false"] / max(1, totals["grad_rows"])
    return (
        f"loss {totals['loss_hit']}/{totals['loss_events']}, {false_loss:5.1f} false;"
        f" grad {totals['grad_hit']}/{totals['grad_events']}, {false_grad:5.1f} false;"
        f" resumes {totals['bad_resumes_found']}/{totals['bad_resumes']},"
        f" accused {totals['good_resumes_alarmed']}/{totals['good_resumes']};"
        f" non-finite missed {totals['nonfinite_missed']}/{totals['nonfinite']}"
    )


@pytest.mark.timeout(600)
def test_labelled_curves(score: Callable[[], Totals]) -> None:
    totals = score()
    print(f"\n{line(totals)}  (false episodes per 100,000 rows)")
    assert totals["nonfinite_missed"] == 0
    assert totals["good_resumes_alarmed"] == 0
    assert totals["bad_resumes_found"] == totals["bad_resumes"]


@pytest.mark.timeout(1800)
def test_sensitivity(
    score: Callable[[], Totals], quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves and doubles each number in turn; nothing is required of the result but a score."""
    print(f"\n{'as it is':36}{line(score())}")
    numbers = list(_numbers())[:: 20 if quick else 1]
    for part, name, value in numbers:
        for factor in (0.5, 2.0):
            changed = type(value)(value * factor)
            with monkeypatch.context() as patch:
                if not _patch(patch, part, name, changed):
                    continue
                print(f"{part + '.' + name + ' = ' + format(changed, 'g'):36}{line(score())}")


def _numbers() -> Iterator[tuple[str, str, Any]]:
    for name, value in production.SETTINGS.items():
        yield "SETTINGS", name, value
    yield "TREND_SHARE", "", production.TREND_SHARE
    for part in PARTS:
        for field in dataclasses.fields(getattr(production, part)):
            value = getattr(getattr(production, part), field.name)
            if field.name == "trend_window":  # TREND_SHARE decides
                continue
            if type(value) in (int, float) and value not in (0, float("inf")):
                yield part, field.name, value


def _patch(patch: pytest.MonkeyPatch, part: str, name: str, value: Any) -> bool:
    """Change a number of the preset; False where it has no meaning."""
    if name.endswith("min_periods") and value < 2:
        return False
    if part == "SETTINGS":
        patch.setitem(production.SETTINGS, name, value)
    elif part == "TREND_SHARE":
        patch.setattr(production, part, value)
    else:
        changed = dataclasses.replace(getattr(production, part), **{name: value})
        patch.setattr(production, part, changed)
    return True


def test_synthetic_matrix(quick: bool) -> None:
    """False episodes on healthy streams, and the share of single spikes that is found."""
    n, seeds = (5_000, 1) if quick else (100_000, 5)
    streams: dict[str, Callable[[int], list[float]]] = {
        "Gaussian": lambda seed: gaussian(n, seed),
        "AR(1), 0.8": lambda seed: autoregressive(n, seed, 0.8),
        "AR(1), 0.95": lambda seed: autoregressive(n, seed, 0.95),
        "Student t3": lambda seed: student_t3(n, seed),
    }
    print(f"\nfalse episodes in {n:,} healthy steps, {seeds} seeds")
    for name, stream in streams.items():
        print(f"  {name:22}", [episodes(watch(stream(seed))) for seed in range(seeds)])
    norms = [episodes(watch_grad(log_normal(n, seed))) for seed in range(seeds)]
    print(f"  {'log-normal grad norm':22}", norms)
    print("share of one-step spikes found, Gaussian noise of 1.7 % of the level")
    for sigmas in (6, 8, 10, 12, 16):
        print(f"  {sigmas:2} sigma {_recall(sigmas, 20 if quick else 400):.3f}")


def _recall(sigmas: float, runs: int) -> float:
    found = 0
    for seed in range(runs):
        draw = random.Random(seed)
        monitor = TrainingHealthMonitor.production()
        watch((LEVEL + NOISE * draw.gauss(0, 1) for _ in range(300)), monitor)
        found += bool(monitor.observe_step(300, LEVEL + NOISE * (draw.gauss(0, 1) + sigmas)))
    return found / runs


def test_cost_beside_the_bare_monitor(quick: bool) -> None:
    """Required: at most twice; asserted with slack, for a busy machine."""
    ratios = []
    for _ in range(1 if quick else 5):
        bare, full = (
            _median_us(make) for make in (TrainingHealthMonitor, TrainingHealthMonitor.production)
        )
        ratios.append(full / bare)
        print(f"\nobserve_step: bare {bare:.2f} us, production {full:.2f} us, {full / bare:.2f} x")
    if not quick:
        assert statistics.median(ratios) < 2.5


def _median_us(make: Callable[..., TrainingHealthMonitor]) -> float:
    model = ModelFlopConfig(n_params=124_337_664, n_layer=12, n_head=12, d_model=768, seq_len=1024)
    monitor = make(flop_config=model, peak_flops_per_sec=312e12)
    draw = random.Random(0)
    taken = []
    for step in range(6_000):
        loss, norm = LEVEL + NOISE * draw.gauss(0, 1), 1.0 + 0.1 * draw.random()
        seconds = 0.5 + 0.01 * draw.random()
        begun = time.perf_counter_ns()
        monitor.observe_step(step, loss, grad_norm=norm, step_time_s=seconds, batch_size=8)
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken[1_000:]) / 1e3
