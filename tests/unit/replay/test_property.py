"""What holds for every log: nothing makes a reader fail, and what was written is read."""

from __future__ import annotations

import io
import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from health_exporter.replay.crc32c import masked
from health_exporter.replay.detection import READERS
from health_exporter.replay.error import LogError
from health_exporter.replay.tally import Tally
from tests.unit.replay.log import read
from tests.unit.replay.test_data import LIGHTNING, WANDB
from tests.unit.replay.test_text import (
    BUILD_NANOGPT,
    LLM_C,
    MEGATRON,
    NANOGPT,
    PRINTED,
    TORCHTITAN,
)

SAMPLES = [
    text.encode()
    for text in (
        NANOGPT, BUILD_NANOGPT, LLM_C, MEGATRON, TORCHTITAN, PRINTED, WANDB, LIGHTNING,
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n',
        '{"log_history": [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.4}]}',
        "".join(f"step={n} loss={n / 7}\n" for n in range(5)),
    )
]  # fmt: skip

finite = st.floats(-1e6, 1e6).map(lambda x: round(x, 4))
# As a trainer prints it with four digits.
printed = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf]))
observations = st.lists(st.tuples(printed, finite.map(abs)), min_size=3, max_size=20)


def same(found: float | None, wanted: float) -> bool:
    return found is not None and (found == wanted or (found != found and wanted != wanted))


def check(text: str, wanted: str, values: list[tuple[float, float]]) -> None:
    rows, tally, name = read(text)
    assert name == wanted
    assert tally.n_damaged == 0
    assert len(rows) == len(values)
    for step, (row, (loss, norm)) in enumerate(zip(rows, values, strict=True)):
        assert row.step == step
        assert same(row.loss, loss)
        assert same(row.grad_norm, norm)


@given(observations)
def test_nanogpt_reads_what_was_printed(values: list[tuple[float, float]]) -> None:
    lines = [
        f"iter {n}: loss {loss:.4f}, time 12.34ms, mfu 1.00%, grad_norm {norm:.4f}"
        for n, (loss, norm) in enumerate(values)
    ]
    check("\n".join(lines), "nanogpt", values)


@given(observations)
def test_torchtitan_reads_what_was_printed(values: list[tuple[float, float]]) -> None:
    lines = [
        f"[rank0]:[titan] 2025-01-02 03:04:05,678 - root - INFO - step: {n:2}  loss: {loss:8.4f}"
        f"  grad_norm: {norm:7.4f}  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
        for n, (loss, norm) in enumerate(values)
    ]
    check("\n".join(lines), "torchtitan", values)


@given(observations)
def test_llm_c_reads_what_was_printed(values: list[tuple[float, float]]) -> None:
    lines = [
        f"step {n:4d}/100 | loss {loss:.4f} (+1.2z)| norm {norm:.4f} (-0.1z)| lr 1.0e-04 |"
        " 12.34 ms | 40.2% bf16 MFU | 209813 tok/s"
        for n, (loss, norm) in enumerate(values)
    ]
    check("\n".join(lines), "llm.c", values)


@given(observations)
def test_json_lines_are_read_as_written(values: list[tuple[float, float]]) -> None:
    lines = [
        json.dumps({"step": n, "train": {"loss": loss, "grad_norm": norm}})
        for n, (loss, norm) in enumerate(values)
    ]
    check("\n".join(lines), "jsonl", values)


@given(observations)
def test_tables_are_read_as_written(values: list[tuple[float, float]]) -> None:
    lines = [f"{n},{loss!r},{norm!r}" for n, (loss, norm) in enumerate(values)]
    check("\n".join(["step,train/loss,grad_norm", *lines]), "csv", values)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 20)), max_size=5),
)
def test_no_damage_makes_a_reader_fail(
    sample: bytes, damages: list[tuple[float, bytes, int]]
) -> None:
    data = sample
    for place, insert, cut in damages:
        at = int(place * len(data))
        data = data[:at] + insert + data[at + cut :]
    for reader in READERS:
        found = reader({})
        if found.detect(data).confidence > 0.0:
            try:
                list(found.rows(io.BytesIO(data), Tally()))
            except LogError as error:  # the damage hit the only name of the loss
                assert str(error)  # noqa: PT017


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_whatever_bytes_are_no_crash(data: bytes) -> None:
    length = len(data).to_bytes(8, "little")
    record = length + masked(length).to_bytes(4, "little") + data
    for content in (data, record + masked(data).to_bytes(4, "little")):
        for reader in READERS:
            found = reader({})
            if found.detect(content).confidence > 0.0:
                try:
                    list(found.rows(io.BytesIO(content), Tally()))
                except LogError as error:
                    assert str(error)  # noqa: PT017
