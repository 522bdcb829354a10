"""Text logs as their trainers print them."""

from __future__ import annotations

import math

import pytest

from tests.unit.replay.log import losses, read

NANOGPT = """\
number of parameters: 10.65M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2654, time 25841.03ms, mfu -100.00%
iter 10: loss 3.1420, time 110.25ms, mfu 12.34%
step 20: train loss 2.8548, val loss 2.9973
saving checkpoint to out-shakespeare-char
iter 20: loss 2.7312, time 111.05ms, mfu 12.31%
"""

BUILD_NANOGPT = """\
using device: cuda
validation loss: 10.9514
step     0 | loss: 10.955029 | lr 8.3916e-07 | norm: 15.3357 | dt: 27239.95ms | tok/sec: 19247.27
step     1 | loss: 10.902311 | lr 1.6783e-06 | norm: 14.1046 | dt: 2382.11ms | tok/sec: 220093.34
HellaSwag accuracy: 2463/10042=0.2453
step     2 | loss: 10.801145 | lr 2.5175e-06 | norm: inf | dt: 2379.80ms | tok/sec: 220307.21
"""

MODDED = """\
step:0/1530 val_loss:10.8258 train_time:0ms step_avg:nanms
step:1/1530 train_loss:10.8258 train_time:160ms step_avg:nanms
step:2/1530 train_loss:10.1201 train_time:400ms step_avg:nanms
step:3/1530 train_loss:9.7512 train_time:640ms step_avg:240.00ms
"""

LLM_C = """\
val loss 11.033154
step    1/19560 | loss 11.032358 (+nanz)| norm 22.1414 (+nanz)| lr 8.57e-07 | 2498.84 ms | 40.2% bf16 MFU | 209813 tok/s
step    2/19560 | loss 10.958507 (+nanz)| norm 22.0968 (+nanz)| lr 1.71e-06 | 2492.03 ms | 40.3% bf16 MFU | 210386 tok/s
step    3/19560 | loss 10.811316 (-1.2z)| norm 21.1251 (+0.3z)| lr 2.57e-06 | 2495.11 ms | 40.3% bf16 MFU | 210250 tok/s
"""  # noqa: E501

LLM_C_FILE = """\
s:0 tel:11.0332
s:1 trl:11.0324 lr:0.000001 norm:22.14
s:2 trl:10.9585 lr:0.000002 norm:22.10
s:2 eval:0.2463
"""

MEGATRON = """\
[default7]: > learning rate decay style: cosine
[default7]:  [2025-05-27 15:23:07] iteration       10/   24000 | consumed samples:        10240 | elapsed time per iteration (ms): 7160.0 | throughput per GPU (TFLOP/s/GPU): 40.4 | learning rate: 1.500000E-06 | global batch size:  1024 | load_balancing_loss: 1.041994E+00 | lm loss: 1.192634E+01 | loss scale: 65536.0 | grad norm: 5.960 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
[default7]: validation loss at iteration 10 | lm loss value: 1.1E+01 | lm loss PPL: 6.0E+04 |
[default7]:  [2025-05-27 15:24:19] iteration       20/   24000 | consumed samples:        20480 | elapsed time per iteration (ms): 7170.0/7165.0 | learning rate: 3.0E-06 | global batch size:  1024 | load_balancing_loss: 1.04E+00 | loss scale: 32768.0 | grad norm: inf | number of skipped iterations:  10 | number of nan iterations:   0 |
[default7]: successfully loaded checkpoint from /checkpoints/run [ t 1/8, p 1/4 ] at iteration 10
[default7]:  [2025-05-27 15:33:07] iteration       20/   24000 | consumed samples:        20480 | elapsed time per iteration (ms): 7150.0 | learning rate: 3.0E-06 | global batch size:  1024 | load_balancing_loss: 1.04E+00 | lm loss: nan | loss scale: 32768.0 | grad norm: 5.1 | number of skipped iterations:   0 | number of nan iterations:  10 |
"""  # noqa: E501

TORCHTITAN = """\
[rank0]:[titan] 2026-02-24 19:46:10,000 - root - INFO - Training starts at step 1
[rank0]:[titan] 2026-02-24 19:46:15,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.12345  \x1b[35mgrad_norm:  1.4142  \x1b[33mmemory: 66.91GiB(37.51%)  \x1b[34mtps: 10,050  \x1b[36mtflops: 314.71  \x1b[35mmfu: 13.99%\x1b[39m
[rank1]:[titan] 2026-02-24 19:46:15,000 - root - INFO - step:  1  loss:  8.12345  grad_norm:  1.4142  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%
[rank0]:[titan] 2026-02-24 19:46:16,500 - root - INFO - step:  2  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%
[rank0]:[titan] 2026-02-24 19:46:16,700 - root - INFO - validate step:  2  loss:  7.5000  memory: 66.91GiB(37.51%)  tps: 10,050
[rank0]:[titan] 2026-02-24 19:46:17,000 - root - INFO - Loading the checkpoint from ./outputs/checkpoint/step-2.
[rank0]:[titan] 2026-02-24 19:46:18,000 - root - INFO - step:  3  loss:  nan  grad_norm:  nan  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%
"""  # noqa: E501

LIGHTNING = (
    "  | Name  | Type   | Params\n"
    "Epoch 0:   0%|          | 0/4 [00:00<?, ?it/s]\r"
    "Epoch 0:  25%|##5       | 1/4 [00:00<00:01,  2.00it/s, v_num=3, train_loss=2.300]\r"
    "Epoch 0:  50%|#####     | 2/4 [00:01<00:01,  2.00it/s, v_num=3, train_loss=2.200]\n"
    "Validation: |          | 0/? [00:00<?, ?it/s]\n"
    "Epoch 1:  25%|##5       | 1/4 [00:00<00:01,  4.00s/it, v_num=3, train_loss=1.900,"
    " val_loss=2.100]\n"
)

PRINTED = """\
{'loss': 2.3011, 'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'epoch': 0.01}
{'loss': 2.1, 'grad_norm': nan, 'learning_rate': 4.8e-05, 'epoch': 0.02}
{'eval_loss': 2.2, 'eval_runtime': 3.1, 'epoch': 0.02}
{'loss': nan, 'grad_norm': inf, 'learning_rate': 4.7e-05, 'epoch': 0.03}
{'train_runtime': 30.2, 'train_loss': 2.15, 'epoch': 0.03}
"""


def test_nanogpt_trains_between_its_evaluations() -> None:
    rows, tally, name = read(NANOGPT)
    assert name == "nanogpt"
    assert losses(rows) == [(0, 4.2654), (10, 3.142), (20, 2.7312)]
    assert rows[1].step_time_s == pytest.approx(0.11025)
    assert tally.n_damaged == 0


def test_nanogpt_with_evaluations_alone() -> None:
    text = "".join(
        f"step {i}: train loss {3 - i / 1000:.4f}, val loss 3.1\n" for i in (0, 250, 500)
    )
    rows, _, name = read(text)
    assert name == "nanogpt"
    assert losses(rows) == [(0, 3.0), (250, 2.75), (500, 2.5)]


@pytest.mark.parametrize(
    "line",
    [
        "iter {n}: loss 2.5000 BPC, time 52.57ms, mfu 7.09%",
        "Epoch 1 | iter {n} step 3 | loss train: 2.500, val: n/a | iter time: 52.57 ms (step)",
        "iter {n} step 3: loss 2.5000, iter time: 52.57ms (optimizer.step)",
        "step {n}, loss: 2.5, dt: 52.57ms, tok/sec: 100.0",
    ],
)
def test_relatives_of_nanogpt(line: str) -> None:
    rows, _, name = read("".join(line.format(n=n) + "\n" for n in (10, 20, 30)))
    assert name == "nanogpt"
    assert losses(rows) == [(10, 2.5), (20, 2.5), (30, 2.5)]
    assert rows[0].step_time_s == pytest.approx(0.05257)


def test_build_nanogpt() -> None:
    rows, _, name = read(BUILD_NANOGPT)
    assert name == "nanogpt"
    assert losses(rows) == [(0, 10.955029), (1, 10.902311), (2, 10.801145)]
    assert rows[1].grad_norm == 14.1046
    assert rows[2].grad_norm == math.inf
    assert rows[1].lr == 1.6783e-06
    assert rows[1].step_time_s == pytest.approx(2.38211)


def test_modded_nanogpt_tells_the_time_that_has_passed() -> None:
    rows, _, name = read(MODDED)
    assert name == "nanogpt"
    assert losses(rows) == [(1, 10.8258), (2, 10.1201), (3, 9.7512)]
    assert rows[2].step_time_s == pytest.approx(0.24)


@pytest.mark.parametrize("text", [LLM_C, LLM_C_FILE])
def test_llm_c(text: str) -> None:
    rows, tally, name = read(text)
    assert name == "llm.c"
    assert rows[0].step == 1
    assert rows[0].loss == pytest.approx(11.0324, abs=1e-4)
    assert rows[1].grad_norm == pytest.approx(22.1, abs=0.01)
    assert tally.n_damaged == 0


def test_llm_c_step_time() -> None:
    assert read(LLM_C)[0][0].step_time_s == pytest.approx(2.49884)


def test_megatron() -> None:
    rows, tally, name = read(MEGATRON)
    assert name == "megatron"
    assert (rows[0].step, rows[0].loss, rows[0].grad_norm) == (10, 11.92634, 5.96)
    assert rows[0].step_time_s == pytest.approx(7.16)
    assert rows[0].lr == 1.5e-06
    assert tally.columns["loss"] == "lm loss"
    assert tally.n_damaged == 0


def test_megatron_interval_of_skipped_steps_has_no_loss() -> None:
    rows, tally, _ = read(MEGATRON)
    assert rows[1].loss is None
    assert rows[1].grad_norm == math.inf
    assert tally.n_skipped_steps == 10


def test_megatron_loads_a_checkpoint() -> None:
    rows, _, _ = read(MEGATRON)
    assert [bool(row.resumed) for row in rows] == [False, False, True]
    assert rows[2].loss is not None
    assert math.isnan(rows[2].loss)


def test_megatron_that_finds_no_checkpoint_starts_from_scratch() -> None:
    text = (
        "loading checkpoint from /checkpoints/run\n"
        "    will not load any checkpoints and will start from random\n" + MEGATRON
    )
    assert read(text)[0][0].resumed == ""


def test_torchtitan_in_colour_follows_one_rank() -> None:
    rows, tally, name = read(TORCHTITAN)
    assert name == "torchtitan"
    assert [(row.step, row.grad_norm) for row in rows[:2]] == [(1, 1.4142), (2, 26.625)]
    assert tally.n_other_ranks == 1
    assert "Loading the checkpoint" in rows[2].resumed
    assert rows[2].loss is not None
    assert math.isnan(rows[2].loss)


def test_torchtitan_dates() -> None:
    rows, _, _ = read(TORCHTITAN)
    assert rows[0].time is not None
    assert rows[1].time is not None
    assert rows[1].time - rows[0].time == pytest.approx(1.5)


def test_lightning_counts_through_the_epochs() -> None:
    rows, _, name = read(LIGHTNING)
    assert name == "lightning"
    assert losses(rows) == [(1, 2.3), (2, 2.2), (5, 1.9)]
    assert [row.step_time_s for row in rows] == [0.5, 0.5, 4.0]


def test_nemo_s_bars_show_a_running_mean_too() -> None:
    text = "".join(
        f"Epoch 0: :  47%|####7     | {n}/15 [06:19<07:13, loss=7.75, v_num=, reduced_train_loss="
        f"{11 - n}.500, global_step={n - 1}.000, train_step_timing in s=49.50]\n"
        for n in (5, 6, 7)
    )
    rows, _, name = read(text)
    assert name == "lightning"
    assert losses(rows) == [(5, 6.5), (6, 5.5), (7, 4.5)]
    assert rows[0].step_time_s == 49.5


def test_printed_dictionaries_are_numbered() -> None:
    rows, tally, name = read(PRINTED)
    assert name == "hf-print"
    assert [row.step for row in rows] == [1, 2, 3]
    assert rows[0].loss == 2.3011
    assert rows[2].grad_norm == math.inf
    assert tally.n_damaged == 0


def test_printed_dictionaries_take_the_bar_s_steps() -> None:
    text = "".join(
        f" {n}%|#         | {n}/100 [00:0{n // 10}<01:00,  1.5it/s]\r"
        f"{{'loss': {3 - n / 100}, 'learning_rate': 1e-05, 'epoch': {n / 100}}}\n"
        for n in (10, 20, 30)
    )
    rows, _, name = read(text)
    assert name == "hf-print"
    assert losses(rows) == [(10, 2.9), (20, 2.8), (30, 2.7)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step={n} loss=2.5 grad_norm=1.5 lr=0.001", (7, 2.5, 1.5)),
        ("step: {n}, loss: 2.5, grad_norm: 1.5", (7, 2.5, 1.5)),
        ("2024-01-02 03:04:05 | INFO | Step {n} | Loss 2.5 | gnorm 1.5", (7, 2.5, 1.5)),
        ("Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_step: {n} | "
         "reduced_train_loss: 2.5 | grad_norm: 1.5", (7, 2.5, 1.5)),
        ("eta: 0:10:00  iter: {n}  total_loss: 2.5  loss_cls: 0.3  time: 0.2  lr: 0.0002",
         (7, 2.5, None)),
        ("steps: {n} loss: 2.5000 iter time (s): 1.250 samples/sec: 12.3", (7, 2.5, None)),
        ("2025-01-02 03:04:05 | INFO | train_inner | epoch 001:    100 / 487 loss=2.5, ppl=12.1,"
         " wps=100, num_updates={n}, lr=0.001, gnorm=1.5", (7, 2.5, 1.5)),
        ("Iteration:     {n}, Loss function: 2.5, Average Loss: 0.98246424", (7, 2.5, None)),
        ('| train_inner | "loss": "2.5", "num_updates": "{n}", "gnorm": "1.5"', (7, 2.5, 1.5)),
    ],
)  # fmt: skip
def test_key_value_lines(line: str, expected: tuple[int, float, float | None]) -> None:
    text = "".join(line.format(n=n) + "\n" for n in (6, 7, 8))
    rows, _, name = read(text, wanted="text")
    assert name == "text"
    assert len(rows) == 3
    assert (rows[1].step, rows[1].loss, rows[1].grad_norm) == expected


@pytest.mark.parametrize(
    "line",
    [
        "| epoch {e:3d} | {b:5d}/  100 batches | lr 20.0 | ms/batch 12.34 | loss  2.50 | ppl 12.1",
        "[Epoch {e} Batch {b}/100] current loss 2.50, ppl 12.18, throughput 300 samples/s, lr 30",
        "Epoch [{e}][{b}/100]  lr: 1.9e-03, eta: 1:00:00, time: 0.41, loss_cls: 0.6, loss: 2.50",
        "Epoch: [{e}][ {b}/100]\tTime 0.21 (0.30)\tLoss 2.50 (2.71)",
        "Epoch {e} iteration 00{b}/0100: training loss 2.50",
        "INFO:root:[Epoch {e}][Batch {b}/100], Speed: 58.1 samples/sec, CrossEntropy=2.50",
        "Epoch: {e}/2 | Step: {b}/100 | PPO Epoch: 1 | Actor Loss: 2.50 | Critic Loss: 9.0",
    ],
)
def test_steps_that_begin_anew_in_each_epoch(line: str) -> None:
    text = "".join(line.format(e=e, b=b) + "\n" for e in (1, 2) for b in (20, 40, 60))
    rows, _, _ = read(text)
    steps = [row.step for row in rows]
    assert [row.loss for row in rows] == [2.5] * 6
    assert steps == sorted(set(steps))
    assert steps[3] - steps[0] == 100


def test_validation_lines_are_no_steps() -> None:
    text = "".join(f"step {n} loss {2.5 - n / 100}\nval step {n} val loss 9.9\n" for n in range(5))
    rows, _, _ = read(text)
    assert [row.loss for row in rows] == [2.5, 2.49, 2.48, 2.47, 2.46]


def test_rank_prefixes_of_srun() -> None:
    text = "".join(
        f"{r}: step {n} | loss: {2.5 + r} | norm: 1.0\n" for n in range(5) for r in (0, 1)
    )
    rows, tally, _ = read(text)
    assert [row.loss for row in rows] == [2.5] * 5
    assert tally.n_other_ranks == 5


@pytest.mark.parametrize("prefix", ["{n}: ", "[{n}]: ", "[{n}] "])
def test_lines_that_begin_with_their_step(prefix: str) -> None:
    text = "".join(prefix.format(n=n) + f"step {n} | loss: 2.5 | norm: 1.0\n" for n in range(300))
    rows, tally, _ = read(text)
    assert len(rows) == 300
    assert tally.n_other_ranks == 0


def test_damaged_lines_are_named() -> None:
    text = NANOGPT + "iter 30: loss 2.x, time 1ms\niter 40: loss 2.5000, time 110.00ms\niter 50: lo"
    rows, tally, _ = read(text)
    assert rows[-1].step == 40
    assert tally.damaged == [
        (8, "a row without a loss that can be read"),
        (10, "a row without a loss that can be read"),
    ]


def test_windows_line_ends_and_damaged_utf8() -> None:
    data = (
        NANOGPT.replace("\n", "\r\n").encode()
        + b"\xff\xfe\x80 warning\r\niter 30: loss 2.1, time 1ms\r\n"
    )
    rows, tally, name = read(data)
    assert name == "nanogpt"
    assert losses(rows)[-1] == (30, 2.1)
    assert tally.n_damaged == 0


@pytest.mark.parametrize(
    "line",
    [
        "Resuming training from out",
        "=> loaded checkpoint 'ckpt_10.pth' (epoch 3)",
        "loading checkpoint from /ckpt/iter_0001000",
        "Finished loading the checkpoint in 1.24 seconds.",
        "Restored all states from the checkpoint at /ckpt/last.ckpt",
    ],
)
def test_resume_lines(line: str) -> None:
    rows, _, _ = read(NANOGPT + line + "\niter 10: loss 3.1, time 1ms\n")
    assert rows[-1].resumed == line


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00]",
        "no checkpoint found to load, not resuming training from anything",
        "resume: False, load_checkpoint: None",
        "failed to load checkpoint from /ckpt",
    ],
)
def test_lines_that_are_no_resume(line: str) -> None:
    rows, _, _ = read(NANOGPT + line + "\niter 30: loss 3.1, time 1ms\n")
    assert rows[-1].resumed == ""
