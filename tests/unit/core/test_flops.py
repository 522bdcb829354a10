from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from health_exporter import (
    MFUSample,
    ModelFlopConfig,
    flop_config_from_causal_lm,
    theoretical_flops_per_iter,
)

SHAPE: dict[str, Any] = {"n_params": 1000, "n_layer": 2, "n_head": 2, "d_model": 16, "seq_len": 8}
SAMPLE: dict[str, Any] = {
    "step": 3,
    "step_flops": 1e9,
    "step_time_s": 0.5,
    "peak_flops_per_sec": 4e9,
}


def test_hand_computed_toy():
    # A token: 6,000 for the parameters; attention 12 x 2 layers x 2 heads x 8 wide x 8 tokens.
    # 9,072 a token, 8 tokens, 4 sequences.
    assert theoretical_flops_per_iter(**SHAPE, batch_size=4) == 290_304.0
    assert ModelFlopConfig(**SHAPE).flops_per_iter(4) == 290_304.0


def test_hand_computed_gpt2():
    # 124,337,664 parameters without position embeddings: 746,025,984 a token, and
    # 12 x 12 x 768 x 1,024 = 113,246,208 for attention; 859,272,192 x 1,024 tokens x 8.
    config = ModelFlopConfig(124_337_664, 12, 12, 768, 1024)
    assert config.flops_per_iter(8) == 7_039_157_796_864.0


def test_a_large_model_is_exact_to_the_last_bit():
    flops = theoretical_flops_per_iter(
        n_params=405_000_000_001,
        n_layer=126,
        n_head=128,
        d_model=16_384,
        seq_len=131_072,
        batch_size=2048,
    )
    assert flops == float(1_523_906_815_564_386_926_592)


def test_heads_do_not_change_the_flops():
    one = theoretical_flops_per_iter(**{**SHAPE, "n_head": 1}, batch_size=1)
    assert one == theoretical_flops_per_iter(**{**SHAPE, "n_head": 16}, batch_size=1)


@pytest.mark.parametrize("name", [*SHAPE, "batch_size"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("1", TypeError)],
)
def test_bad_arguments(name, value, error):
    with pytest.raises(error, match=f"{name} must be .*, got {value!r}"):
        theoretical_flops_per_iter(**{**SHAPE, "batch_size": 1, name: value})
    if name != "batch_size":
        with pytest.raises(error, match=f"{name} must be .*, got {value!r}"):
            ModelFlopConfig(**{**SHAPE, name: value})


def test_heads_divide_the_width():
    message = "d_model must be a multiple of n_head=3, got 10"
    with pytest.raises(ValueError, match=message):
        ModelFlopConfig(n_params=100, n_layer=1, n_head=3, d_model=10, seq_len=8)
    with pytest.raises(ValueError, match=message):
        theoretical_flops_per_iter(
            n_params=100, n_layer=1, n_head=3, d_model=10, seq_len=8, batch_size=1
        )


def test_a_configuration_takes_numpy_integers_and_cannot_be_changed():
    config = ModelFlopConfig(**{name: np.int32(value) for name, value in SHAPE.items()})
    assert config == ModelFlopConfig(**SHAPE)
    assert type(config.n_params) is int
    with pytest.raises(AttributeError):
        config.n_layer = 3  # type: ignore[misc]


def test_mfu_is_achieved_over_peak():
    sample = MFUSample(**SAMPLE)
    assert sample.achieved_flops_per_sec == 2e9
    assert sample.mfu == 0.5


def test_a_sample_takes_every_kind_of_number():
    sample = MFUSample(np.int64(3), 10**9, np.float32(0.5), np.array(4e9))  # type: ignore[arg-type]
    assert sample == MFUSample(**SAMPLE)
    assert type(sample.step_flops) is float


@pytest.mark.parametrize("name", ["step_flops", "step_time_s", "peak_flops_per_sec"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        *((value, ValueError) for value in (0.0, -1.0, math.nan, math.inf)),
        *((value, TypeError) for value in ("1", True, None)),
    ],
)
def test_a_bad_sample(name, value, error):
    with pytest.raises(error, match=f"{name} must be .*, got {value!r}"):
        MFUSample(**{**SAMPLE, name: value})


@pytest.mark.parametrize(("step", "error"), [(-1, ValueError), (1.0, TypeError)])
def test_a_bad_step_of_a_sample(step, error):
    with pytest.raises(error, match=f"step must be .*, got {step}"):
        MFUSample(**{**SAMPLE, "step": step})


class Sized:
    def __init__(self, *sizes, **attributes):
        self.weight = self
        self.sizes = sizes
        self.__dict__.update(attributes)

    def numel(self):
        return math.prod(self.sizes)

    def parameters(self):
        return [Sized(size) for size in self.sizes]


def test_position_embeddings_are_not_counted():
    model = Sized(100, 8 * 16, 50, n_layer=2, n_head=2, d_model=16, pos=Sized(8, 16))
    assert flop_config_from_causal_lm(model, 8) == ModelFlopConfig(150, 2, 2, 16, 8)


@pytest.mark.parametrize("attributes", [{}, {"pos": None}, {"pos": "rotary"}])
def test_a_model_without_learned_positions_is_counted_whole(attributes):
    model = Sized(100, 50, n_layer=2, n_head=2, d_model=16, **attributes)
    assert flop_config_from_causal_lm(model, 8).n_params == 150


def test_a_wrapped_model_is_unwrapped():
    model = Sized(100, 50, n_layer=2, n_head=2, d_model=16, pos=Sized(50))
    assert flop_config_from_causal_lm(Sized(module=model), 8).n_params == 100


def test_a_model_with_a_part_called_module_is_not_unwrapped():
    model = Sized(100, 50, n_layer=2, n_head=2, d_model=16, module=Sized(100))
    assert flop_config_from_causal_lm(model, 8).n_params == 150


def test_a_model_of_another_kind_says_what_it_lacks():
    with pytest.raises(AttributeError, match="n_head"):
        flop_config_from_causal_lm(Sized(100, n_layer=2, d_model=16), 8)
    with pytest.raises(AttributeError, match="n_layer"):
        flop_config_from_causal_lm(Sized(100), 8)
