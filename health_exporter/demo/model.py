"""A small GPT.

Shapes: B sequences, T tokens, D width, H heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

# Standard deviations of new weights. Matrices are as in GPT-2 (Radford et al. 2019). The embeddings
# there are as small, but what enters the first norm is scaled up to one, and so is its gradient:
# the gradient norm then jumps with every token that the batch has more of than usual. Four times as
# large it is quiet, and the first loss still close to that of a uniform guess, log V.
_MATRIX_STD = 0.02
_EMBEDDING_STD = 0.08


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        q_BHTK, k_BHTK, v_BHTK = (
            part.view(B, T, self.n_head, D // self.n_head).transpose(1, 2)
            for part in self.qkv(x_BTD).split(D, dim=2)
        )
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        mixed: torch.Tensor = self.out(y_BHTK.transpose(1, 2).reshape(B, T, D))
        return mixed


class Block(nn.Module):
    """Attention, then a perceptron four times as wide, each added to what comes in."""

    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, n_head)
        self.perceptron_norm = nn.LayerNorm(d_model)
        self.perceptron = nn.Sequential(
            nn.Linear(d_model, 4 * d_model, bias=False),
            nn.GELU(),
            nn.Linear(4 * d_model, d_model, bias=False),
        )

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        y_BTD: torch.Tensor = x_BTD + self.perceptron(self.perceptron_norm(x_BTD))
        return y_BTD


class GPT(nn.Module):
    """Decoder-only transformer with learned positions; tokens and output share one weight.

    Args:
        vocabulary: Number of tokens (V).
        n_layer: Blocks.
        n_head: Attention heads; divides `d_model`.
        d_model: Width (D).
        seq_len: Longest sequence, tokens (T).

    Raises:
        ValueError: `n_head` does not divide `d_model`.
    """

    def __init__(
        self, *, vocabulary: int, n_layer: int, n_head: int, d_model: int, seq_len: int
    ) -> None:
        super().__init__()
        if d_model % n_head:
            raise ValueError(
                f"n_head must divide d_model, got n_head={n_head} and d_model={d_model}"
            )
        self.n_layer = n_layer
        self.n_head = n_head
        self.d_model = d_model
        self.tok = nn.Embedding(vocabulary, d_model)
        self.pos = nn.Embedding(seq_len, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, n_head) for _ in range(n_layer)))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocabulary, bias=False)
        # One weight for both: it then counts once among the parameters, and that one count is the
        # output layer's matrix product, so that 6N has no lookup table in it.
        self.head.weight = self.tok.weight
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.head:
                nn.init.normal_(module.weight, std=_MATRIX_STD)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=_EMBEDDING_STD)
        # The residual path adds up 2 x n_layer outputs: its variance must not grow with depth.
        for block in self.blocks:
            for name, weight in block.named_parameters():
                if name in ("attention.out.weight", "perceptron.2.weight"):
                    nn.init.normal_(weight, std=_MATRIX_STD / math.sqrt(2 * self.n_layer))

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the next token over the batch, in nats (a scalar)."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.tok(tokens_BT) + self.pos(positions_T)
        logits_BTV = self.head(self.norm(self.blocks(x_BTD)))
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
