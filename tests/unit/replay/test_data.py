"""JSON, tables and trainer_state.json, as their loggers write them."""

from __future__ import annotations

import json
import math

import pytest

from health_exporter.replay.error import LogError
from tests.unit.replay.log import losses, read

WANDB = (
    '"Step","run-a - train/loss","run-a - train/loss__MIN","run-a - train/loss__MAX",'
    '"run-b - train/loss","run-b - train/loss__MIN","run-b - train/loss__MAX"\n'
    '"10","2.5","2.5","2.5","","",""\n'
    '"20","2.4","2.4","2.4","3.4","3.4","3.4"\n'
    '"30","NaN","NaN","NaN","","",""\n'
)

LIGHTNING = """\
epoch,step,lr-AdamW,train_loss_epoch,train_loss_step,val_loss
0,49,0.001,,,
0,49,,,2.5,
0,99,0.001,,,
0,99,,,2.25,
0,99,,,,2.4
0,99,,2.31,,
"""

HISTORY = {
    "best_metric": None,
    "epoch": 1.0,
    "log_history": [
        {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 2.5, "step": 10},
        {"epoch": 0.2, "grad_norm": math.nan, "learning_rate": 4e-05, "loss": 2.25, "step": 20},
        {"epoch": 0.2, "eval_loss": 2.4, "eval_runtime": 1.0, "step": 20},
        {"epoch": 0.3, "loss": 0.0, "step": 30},
        {"epoch": 0.3, "total_flos": 1e15, "train_loss": 2.3, "train_runtime": 9.9, "step": 30},
    ],
    "max_steps": 30,
}


def jsonl(*objects: object) -> str:
    return "".join(json.dumps(item) + "\n" for item in objects)


def test_one_s_own_lines() -> None:
    rows, tally, name = read(
        jsonl(
            {"step": 1, "loss": 2.5, "grad_norm": 1.5, "step_time_s": 0.2, "lr": 1e-3},
            {"step": 2, "loss": "NaN", "grad_norm": "Infinity", "restart": True},
        )
    )
    assert name == "jsonl"
    assert rows[0][:5] == (1, 2.5, 1.5, 0.2, 1e-3)
    assert rows[1].loss is not None
    assert math.isnan(rows[1].loss)
    assert rows[1].grad_norm == math.inf
    assert rows[1].resumed
    assert tally.columns["restart"] == "restart"


def test_weights_and_biases_history() -> None:
    rows, tally, _ = read(
        jsonl(
            {"_step": 0, "_timestamp": 1700000000.5, "train/loss": 2.5, "train/global_step": 10,
             "train/grad_norm": 1.5, "train/learning_rate": 1e-4},
            {"_step": 1, "_timestamp": 1700000002.5, "eval/loss": 2.4, "train/global_step": 10},
            {"_step": 2, "_timestamp": 1700000003.5, "train/loss": 2.25, "train/global_step": 20},
        )
    )  # fmt: skip
    assert losses(rows) == [(10, 2.5), (20, 2.25)]
    assert rows[0].time == 1700000000.5
    assert tally.columns["step"] == "train/global_step"
    assert tally.columns["loss"] == "train/loss"


def test_nested_keys() -> None:
    rows, tally, _ = read(
        jsonl(
            *(
                {"timestamp": "2024-05-01T12:00:00.250Z", "step": n,
                 "metrics": {"loss_metrics": {"global_avg_loss": 2.5, "global_max_loss": 9.0},
                             "grad_norm": 1.5}}
                for n in (1, 2, 3)
            )
        )
    )  # fmt: skip
    assert losses(rows) == [(1, 2.5), (2, 2.5), (3, 2.5)]
    assert tally.columns["loss"] == "metrics/loss_metrics/global_avg_loss"
    assert rows[0].grad_norm == 1.5
    assert rows[0].time == pytest.approx(1714564800.25)


def test_trackio_and_log_history_lines() -> None:
    rows, _, _ = read(
        jsonl(
            {"timestamp": "2025-08-01 10:00:00", "step": 3, "metrics": {"train_loss": 2.5}},
            {"timestamp": "2025-08-01 10:00:05", "step": 4, "metrics": {"train_loss": 2.4}},
        )
    )
    assert losses(rows) == [(3, 2.5), (4, 2.4)]
    assert rows[0].time is not None
    assert read(jsonl(*HISTORY["log_history"]))[0][1].loss == 2.25  # type: ignore[misc]


def test_objects_behind_a_prefix() -> None:
    text = "".join(
        f"2024-01-02 03:04:0{n} | INFO | train_inner | "
        f'{{"epoch": 1, "loss": "2.5", "num_updates": "{100 * n}", "gnorm": "0.5", "lr": "1e-4"}}\n'
        for n in (1, 2, 3)
    )
    rows, _, name = read(text)
    assert name == "jsonl"
    assert losses(rows) == [(100, 2.5), (200, 2.5), (300, 2.5)]
    assert rows[0].grad_norm == 0.5


def test_damaged_objects_are_named() -> None:
    text = jsonl({"step": 1, "loss": 2.5}) + '{"step": 2, "lo\n' + jsonl({"step": 3, "loss": "x"})
    rows, tally, _ = read(text + jsonl({"step": 4, "loss": 2.4}))
    assert losses(rows) == [(1, 2.5), (4, 2.4)]
    assert [number for number, _ in tally.damaged] == [2, 3]


def test_resume_lines_between_objects() -> None:
    text = jsonl({"step": 1, "loss": 2.5}) + "Resuming from checkpoint 1\n"
    rows, _, _ = read(text + jsonl({"step": 2, "loss": 2.5}))
    assert [row.resumed for row in rows] == ["", "Resuming from checkpoint 1"]


def test_objects_without_a_step_are_numbered() -> None:
    rows, tally, _ = read(jsonl({"loss": 2.5}, {"val_loss": 2.0}, {"loss": 2.25}))
    assert losses(rows) == [(1, 2.5), (2, 2.25)]
    assert "numbered" in tally.notes[0]


def test_weights_and_biases_export_of_two_runs() -> None:
    rows, tally, name = read(WANDB)
    assert name == "csv"
    assert [row.step for row in rows] == [10, 20, 30]
    assert [row.loss for row in rows][:2] == [2.5, 2.4]
    assert tally.columns["loss"] == "run-a - train/loss"
    assert "2 runs" in tally.notes[0]


def test_a_column_that_is_named() -> None:
    rows, _, _ = read(WANDB, mapping={"loss": "run-b - train/loss"})
    assert losses(rows) == [(20, 3.4)]


def test_a_column_that_does_not_exist() -> None:
    with pytest.raises(LogError, match="'run-a - train/loss'"):
        read(WANDB, mapping={"loss": "run-c - train/loss"})


def test_lightning_metrics() -> None:
    rows, tally, _ = read(LIGHTNING)
    assert losses(rows) == [(49, 2.5), (99, 2.25)]
    assert tally.columns["loss"] == "train_loss_step"
    assert tally.n_damaged == 0


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_delimiters_and_damaged_rows(delimiter: str) -> None:
    header = "step,loss,time_ms"
    table = [header, "1,2.5,100", "2,2.4", "3,abc,100", "4,2.2,100", header, "5,inf,100"]
    rows, tally, _ = read("\r\n".join(table).replace(",", delimiter))
    assert losses(rows) == [(1, 2.5), (4, 2.2), (5, math.inf)]
    assert rows[0].step_time_s == pytest.approx(0.1)
    assert [number for number, _ in tally.damaged] == [3, 4]


def test_trainer_state() -> None:
    rows, tally, name = read(json.dumps(HISTORY, indent=2))
    assert name == "trainer-state"
    assert losses(rows) == [(10, 2.5), (20, 2.25), (30, 0.0)]
    assert rows[1].grad_norm is not None
    assert math.isnan(rows[1].grad_norm)
    assert tally.unit == "object"


def test_trainer_state_on_one_line_and_cut_short() -> None:
    text = json.dumps(HISTORY)
    rows, tally, _ = read(text[: text.index('"eval_loss"')])
    assert losses(rows) == [(10, 2.5), (20, 2.25)]
    assert tally.n_damaged == 1


def test_a_long_trainer_state_is_read_piece_by_piece() -> None:
    history = [{"loss": 2.0, "step": n, "text": "é" * 50} for n in range(3000)]
    rows, tally, _ = read(json.dumps({"log_history": history}, ensure_ascii=False))
    assert [row.step for row in rows] == list(range(3000))
    assert tally.n_damaged == 0


def test_an_array_of_objects() -> None:
    rows, _, name = read(json.dumps([{"iter": 1, "loss": 2.5}, {"iter": 2, "loss": 2.4}]))
    assert name == "trainer-state"
    assert losses(rows) == [(1, 2.5), (2, 2.4)]
