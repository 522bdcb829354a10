"""TensorBoard event files, written with protobuf's own encoder."""

from __future__ import annotations

import importlib
import io
import math
import struct
from typing import Any

import pytest

from health_exporter.replay.crc32c import crc32c, masked
from tests.unit.replay.log import losses, read

# Field numbers and types of the messages (tensorflow/core/util/event.proto and its imports).
_DOUBLE, _FLOAT, _INT64, _INT32, _STRING, _MESSAGE, _BYTES = 1, 2, 3, 5, 9, 11, 12


def messages() -> Any:
    """The class of `Event`, made by protobuf from a description."""
    descriptor_pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="t", syntax="proto3")

    def message(name: str, *fields: tuple[int, str, int, bool, str]) -> None:
        described = file.message_type.add(name=name)
        for number, field, kind, repeated, type_name in fields:
            described.field.add(
                name=field, number=number, type=kind, label=3 if repeated else 1,
                type_name=f".t.{type_name}" if type_name else None,
            )  # fmt: skip

    message("Dim", (1, "size", _INT64, False, ""))
    message("Shape", (2, "dim", _MESSAGE, True, "Dim"))
    message(
        "Tensor",
        (1, "dtype", _INT32, False, ""),
        (2, "tensor_shape", _MESSAGE, False, "Shape"),
        (4, "tensor_content", _BYTES, False, ""),
        (5, "float_val", _FLOAT, True, ""),
        (6, "double_val", _DOUBLE, True, ""),
        (10, "int64_val", _INT64, True, ""),
        (13, "half_val", _INT32, True, ""),
    )
    message(
        "Value",
        (1, "tag", _STRING, False, ""),
        (2, "simple_value", _FLOAT, False, ""),
        (8, "tensor", _MESSAGE, False, "Tensor"),
    )
    message("Summary", (1, "value", _MESSAGE, True, "Value"))
    message("Session", (1, "status", _INT32, False, ""))
    message(
        "Event",
        (1, "wall_time", _DOUBLE, False, ""),
        (2, "step", _INT64, False, ""),
        (3, "file_version", _STRING, False, ""),
        (5, "summary", _MESSAGE, False, "Summary"),
        (7, "session_log", _MESSAGE, False, "Session"),
    )
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def record(data: bytes) -> bytes:
    header = struct.pack("<Q", len(data))
    footer = struct.pack("<I", masked(data))
    return header + struct.pack("<I", masked(header)) + data + footer


def scalar(step: int, tag: str, value: float | dict[str, Any], time: float = 0.0) -> bytes:
    entry: dict[str, Any] = {"tag": tag}
    entry.update({"tensor": value} if isinstance(value, dict) else {"simple_value": value})
    event = messages()(step=step, wall_time=1.7e9 + time, summary={"value": [entry]})
    return record(event.SerializeToString())


def version() -> bytes:
    return record(messages()(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),  # RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc32c(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_scalars_of_a_step_are_one_row() -> None:
    rows, tally, name = read(
        version()
        + scalar(10, "train/loss", 2.5)
        + scalar(10, "train/grad_norm", 1.5)
        + scalar(10, "eval/loss", 9.0)
        + scalar(20, "train/loss", math.nan, 4.0)
        + scalar(20, "train/grad_norm", math.inf, 4.0)
    )
    assert name == "tensorboard"
    assert [(row.step, row.grad_norm) for row in rows] == [(10, 1.5), (20, math.inf)]
    assert rows[0].loss == 2.5
    assert rows[0].time == 1.7e9
    assert rows[1].loss is not None
    assert math.isnan(rows[1].loss)
    assert tally.columns["loss"] == "train/loss"
    assert tally.n_damaged == 0


def test_megatron_s_tags() -> None:
    data = b"".join(
        scalar(n, tag, value)
        for n in (1, 2)
        for tag, value in (
            ("learning-rate", 1e-4),
            ("loss-scale", 1.0),
            ("lm loss", 2.5),
            ("lm loss vs samples", 9.9),
            ("lm loss validation", 8.8),
            ("grad-norm", 1.5),
            ("iteration-time", 0.25),
        )
    )
    rows, tally, _ = read(data)
    assert losses(rows) == [(1, 2.5), (2, 2.5)]
    assert (rows[0].grad_norm, rows[0].step_time_s) == (1.5, 0.25)
    assert tally.columns["loss"] == "lm loss"


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": 1, "float_val": [2.5]},
        {"dtype": 2, "double_val": [2.5]},
        {"dtype": 1, "tensor_content": struct.pack("<f", 2.5)},
        {"dtype": 2, "tensor_content": struct.pack("<d", 2.5)},
        {"dtype": 19, "half_val": [0x4100]},
        {"dtype": 14, "half_val": [0x4020]},
        {"dtype": 1, "float_val": [2.5], "tensor_shape": {"dim": [{"size": 1}]}},
    ],
)
def test_tensors_of_one_number(tensor: dict[str, Any]) -> None:
    rows, _, _ = read(scalar(1, "loss", tensor) + scalar(2, "loss", tensor))
    assert losses(rows) == [(1, 2.5), (2, 2.5)]


def test_tensors_of_more_numbers_are_none() -> None:
    histogram = {"dtype": 2, "double_val": [1.0, 2.0], "tensor_shape": {"dim": [{"size": 2}]}}
    rows, _, _ = read(scalar(1, "loss_histogram", histogram) + scalar(1, "loss", 2.5))
    assert losses(rows) == [(1, 2.5)]


def test_a_writer_that_begins_is_a_resume() -> None:
    start = record(messages()(step=20, session_log={"status": 1}).SerializeToString())
    data = version() + scalar(10, "loss", 2.5) + scalar(20, "loss", 2.4)
    rows, _, _ = read(data + start + scalar(20, "lr", 0.1) + scalar(20, "loss", 2.3))
    assert [bool(row.resumed) for row in rows] == [False, False, True]


def test_a_wrong_checksum_costs_one_record() -> None:
    damaged = bytearray(scalar(2, "loss", 2.4))
    damaged[-6] ^= 0xFF
    rows, tally, _ = read(scalar(1, "loss", 2.5) + bytes(damaged) + scalar(3, "loss", 2.3))
    assert losses(rows) == [(1, 2.5), (3, pytest.approx(2.3))]
    assert tally.damaged == [(2, "the checksum of a record is wrong")]


def test_after_a_damaged_length_the_next_record_is_found() -> None:
    damaged = bytearray(scalar(2, "loss", 2.4))
    damaged[0] ^= 0x55
    rows, tally, _ = read(scalar(1, "loss", 2.5) + bytes(damaged) + scalar(3, "loss", 2.3))
    assert [row.step for row in rows] == [1, 3]
    assert tally.n_damaged == 1


def test_a_file_that_is_cut_short() -> None:
    rows, tally, _ = read(scalar(1, "loss", 2.5) + scalar(2, "loss", 2.4)[:-7])
    assert losses(rows) == [(1, 2.5)]
    assert tally.damaged == [(2, "the file ends within a record")]


def test_gzip_is_told_from_its_first_bytes(tmp_path: Any) -> None:
    import gzip

    from health_exporter.replay.source import Source, head

    path = tmp_path / "events"
    path.write_bytes(gzip.compress(version()))
    assert head(path, 1000) == version()
    with Source(path) as source:
        assert io.BytesIO(version()).read() == source.stream.read()
