from __future__ import annotations

import math

import pytest
import torch

from health_exporter import flop_config_from_causal_lm
from health_exporter.demo.model import GPT


def small() -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=256, n_layer=2, n_head=2, d_model=16, seq_len=8)


def test_its_flop_config_is_read_off_it():
    config = flop_config_from_causal_lm(small(), seq_len=8)

    assert (config.n_layer, config.n_head, config.d_model, config.seq_len) == (2, 2, 16, 8)


def test_the_parameters_counted_are_the_matrices_and_the_norms():
    config = flop_config_from_causal_lm(small(), seq_len=8)

    block = 16 * 48 + 16 * 16 + 16 * 64 + 64 * 16  # qkv, out, up, down
    norms = 5 * 2 * 16
    output = 256 * 16  # shared with the token embedding, and counted once
    assert config.n_params == 2 * block + norms + output


def test_a_new_model_is_little_surer_than_a_uniform_guess():
    tokens = torch.randint(256, (16, 9))

    loss = small()(tokens[:, :-1], tokens[:, 1:]).item()

    assert loss == pytest.approx(math.log(256), abs=0.2)


def test_a_token_has_no_influence_on_predictions_before_it():
    model = small()
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 256
    targets = torch.randint(256, (1, 8))
    targets[0, -1] = -100  # cross-entropy ignores it: all but the last prediction

    assert model(tokens, targets).item() == model(changed, targets).item()


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="n_head=3 and d_model=16"):
        GPT(vocabulary=256, n_layer=1, n_head=3, d_model=16, seq_len=8)
