"""How long a million rows take from the file to the report. Required: under a minute.

Processor time is compared, which a busy machine does not stretch; the other is printed beside it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from health_exporter.cli import main

REQUIRED_S = 60.0


def rows(count: int) -> Iterator[tuple[int, float, float, float]]:
    """Step, loss, gradient norm and step time, as a healthy run has them."""
    draw = random.Random(0)
    for step in range(count):
        loss = 2.5 + 8.0 / (1.0 + step / 500) + draw.gauss(0.0, 0.05)
        yield step, loss, abs(draw.gauss(1.0, 0.1)), 0.2 + draw.random() / 100


def nanogpt(step: int, loss: float, norm: float, seconds: float) -> str:
    return (
        f"iter {step}: loss {loss:.4f}, time {seconds * 1000:.2f}ms, mfu 41.20%,"
        f" grad_norm {norm:.4f}\n"
    )


def megatron(step: int, loss: float, norm: float, seconds: float) -> str:
    return (
        f" [2025-05-27 15:23:07] iteration {step:8d}/ 1000000 | consumed samples: {step * 64:12d}"
        f" | elapsed time per iteration (ms): {seconds * 1000:.1f} | learning rate: 1.500E-04"
        f" | global batch size:    64 | lm loss: {loss:.6E} | loss scale: 1.0"
        f" | grad norm: {norm:.3f} | number of skipped iterations:   0"
        f" | number of nan iterations:   0 |\n"
    )


def json_line(step: int, loss: float, norm: float, seconds: float) -> str:
    return (
        f'{{"_step": {step}, "train/loss": {loss:.6f}, "train/grad_norm": {norm:.6f},'
        f' "step_time_s": {seconds:.5f}, "_timestamp": {1.7e9 + step / 5:.3f}}}\n'
    )


def table(step: int, loss: float, norm: float, seconds: float) -> str:
    return f"{step},{loss:.6f},{norm:.6f},{seconds:.5f}\n"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("form", "header", "options"),
    [
        (nanogpt, "", []),
        (megatron, "", []),
        (json_line, "", []),
        (table, "step,loss,grad_norm,step_time_s\n", []),
        (nanogpt, "", ["--plot"]),
        (nanogpt, "", ["--openmetrics"]),
    ],
)
def test_a_million_rows(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    quick: bool,
    form: Callable[[int, float, float, float], str],
    header: str,
    options: list[str],
) -> None:
    count = 20_000 if quick else 1_000_000
    log = tmp_path / "log"
    with log.open("w") as file:
        file.write(header)
        file.writelines(form(*row) for row in rows(count))
    arguments = [part for option in options for part in (option, str(tmp_path / "out.png"))]
    began, began_cpu = time.perf_counter(), time.process_time()
    assert main(["replay", str(log), "--json", *arguments]) == 0
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    capsys.readouterr()
    with capsys.disabled():
        what = " ".join([form.__name__, *options])
        print(f"\n{count:>9,} rows, {what:<24} {took_cpu:6.1f} s of processor, {took:6.1f} s")
    assert took_cpu < REQUIRED_S
