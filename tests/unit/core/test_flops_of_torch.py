"""The formula against the matmuls that torch counts in a real model."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from health_exporter import flop_config_from_causal_lm

B, T, D, H, L, V = 3, 10, 16, 4, 2, 32


class Block(nn.Module):
    """Without biases and norms, every parameter is a matmul's, and the formula is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.up = nn.Linear(D, 4 * D, bias=False)
        self.down = nn.Linear(4 * D, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p.view(B, T, H, D // H).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        added: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return x + added


class Model(nn.Module):
    """Its head shares the weights of its token embedding."""

    n_layer, n_head, d_model = L, H, D

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Embedding(T, D)
        self.blocks = nn.Sequential(*(Block() for _ in range(L)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tok(tokens) + self.pos.weight)
        return functional.linear(x, self.tok.weight)


def test_flops_are_those_that_torch_counts():
    model = Model()
    tokens = torch.zeros((B, T), dtype=torch.long)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens).sum().backward()
    config = flop_config_from_causal_lm(model, seq_len=T)
    assert config.flops_per_iter(B) == counter.get_total_flops()
