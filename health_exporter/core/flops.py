"""Model FLOPs of a training step, and the share of the hardware's peak that they are (MFU).

Shape letters: N parameters, L layers, H heads, Q head dimension, T sequence length, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from health_exporter.core import argument

FLOPS_CONVENTION = "6N+12LHQT"
"""Non-causal attention, no recomputation, N without position embeddings."""


@dataclass(frozen=True, slots=True)
class ModelFlopConfig:
    """Shape of a decoder-only transformer: all that its model FLOPs depend on.

    Args:
        n_params: Parameters, without position embeddings (a lookup, not a matmul).
        n_layer: Transformer blocks.
        n_head: Attention heads in a block.
        d_model: Width of the residual stream; a multiple of `n_head`.
        seq_len: Tokens in a sequence.

    Raises:
        TypeError: A value is not an integer.
        ValueError: A value is below 1, or `d_model` is not a multiple of `n_head`.
    """

    n_params: int
    n_layer: int
    n_head: int
    d_model: int
    seq_len: int

    def __post_init__(self) -> None:
        for name in ("n_params", "n_layer", "n_head", "d_model", "seq_len"):
            object.__setattr__(self, name, argument.integer(getattr(self, name), name, minimum=1))
        _check_heads(self.d_model, self.n_head)

    def flops_per_iter(self, batch_size: int) -> float:
        """FLOPs of one iteration over `batch_size` sequences, forward and backward."""
        return theoretical_flops_per_iter(
            n_params=self.n_params,
            n_layer=self.n_layer,
            n_head=self.n_head,
            d_model=self.d_model,
            seq_len=self.seq_len,
            batch_size=batch_size,
        )


def _check_heads(d_model: int, n_head: int) -> None:
    if d_model % n_head:
        raise ValueError(f"d_model must be a multiple of n_head={n_head}, got {d_model}")


def theoretical_flops_per_iter(
    *, n_params: int, n_layer: int, n_head: int, d_model: int, seq_len: int, batch_size: int
) -> float:
    """Model FLOPs of one training iteration of a decoder-only transformer, forward and backward.

    A token costs 6N for the dense matmuls (2 FLOPs for a multiply-add, once forward and twice
    backward) and 12*L*H*Q*T for the attention matmuls QK^T and AV over the whole context
    (causal masking is not deducted). An iteration has T*B tokens.

    Args:
        n_params: Parameters, without position embeddings.
        n_layer: Transformer blocks.
        n_head: Attention heads in a block.
        d_model: Width of the residual stream; a multiple of `n_head`.
        seq_len: Tokens in a sequence.
        batch_size: Sequences in the iteration, over the same devices as the peak that the result
            will be compared with.

    Returns:
        FLOPs (not FLOPs per second).

    Raises:
        TypeError: A value is not an integer.
        ValueError: A value is below 1, or `d_model` is not a multiple of `n_head`.

    Source:
        Chowdhery et al. (2022), "PaLM", appendix B.
    """
    n_params = argument.integer(n_params, "n_params", minimum=1)
    n_layer = argument.integer(n_layer, "n_layer", minimum=1)
    n_head = argument.integer(n_head, "n_head", minimum=1)
    d_model = argument.integer(d_model, "d_model", minimum=1)
    seq_len = argument.integer(seq_len, "seq_len", minimum=1)
    batch_size = argument.integer(batch_size, "batch_size", minimum=1)
    _check_heads(d_model, n_head)
    # H * Q is d_model. Exact in integers; rounded to a float once, at the end.
    flops_per_token = 6 * n_params + 12 * n_layer * d_model * seq_len
    return float(flops_per_token * seq_len * batch_size)


def flop_config_from_causal_lm(model: Any, seq_len: int) -> ModelFlopConfig:
    """Read a `ModelFlopConfig` off a language model.

    Args:
        model: Has `parameters()` (tensors with `numel()`), the integers `n_layer`, `n_head`,
            `d_model`, and, where it has a learned position embedding, that embedding as `pos`
            with a `weight`. A model wrapped in DistributedDataParallel is unwrapped.
        seq_len: Tokens in a training sequence.

    Raises:
        AttributeError: The model lacks one of the attributes; make a `ModelFlopConfig` by hand.
        TypeError, ValueError: As of `ModelFlopConfig`.
    """
    if not hasattr(model, "n_layer") and hasattr(model, "module"):
        model = model.module
    n_params = sum(p.numel() for p in model.parameters())
    position = getattr(getattr(model, "pos", None), "weight", None)
    if position is not None:
        n_params -= position.numel()
    return ModelFlopConfig(
        n_params=n_params,
        n_layer=model.n_layer,
        n_head=model.n_head,
        d_model=model.d_model,
        seq_len=seq_len,
    )


@dataclass(frozen=True, slots=True)
class MFUSample:
    """Model FLOPs utilisation of one step.

    Args:
        step: Optimizer step.
        step_flops: Model FLOPs of the step (> 0).
        step_time_s: Wall time of the step in seconds (> 0).
        peak_flops_per_sec: Peak of the devices that did the step, in FLOPs per second (> 0).

    Raises:
        TypeError: A value is not a number.
        ValueError: A value is not finite and above 0, or `step` is negative.

    Source:
        Chowdhery et al. (2022), "PaLM", appendix B.
    """

    step: int
    step_flops: float
    step_time_s: float
    peak_flops_per_sec: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", argument.integer(self.step, "step", minimum=0))
        for name in ("step_flops", "step_time_s", "peak_flops_per_sec"):
            value = argument.finite(getattr(self, name), name, above=0.0)
            object.__setattr__(self, name, value)

    @property
    def achieved_flops_per_sec(self) -> float:
        """Model FLOPs per second."""
        return self.step_flops / self.step_time_s

    @property
    def mfu(self) -> float:
        """Achieved over peak, 0 to 1 on hardware whose peak is right."""
        return self.achieved_flops_per_sec / self.peak_flops_per_sec
