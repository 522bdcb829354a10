"""The training loop, with the lines that a trainer needs for the exporter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from health_exporter.demo.checkpoint import Checkpoint
from health_exporter.demo.fault import LOSSY_LEARNING_RATE_FACTOR, Fault

if TYPE_CHECKING:
    from health_exporter import Anomaly, HealthExporter
    from health_exporter.demo.batch import Batches
    from health_exporter.demo.model import GPT
    from health_exporter.demo.settings import DemoSettings

_MAX_GRAD_NORM = 1.0  # usual for language models; gradients are judged as they were before it
_FINAL_LEARNING_RATE = 0.1  # share of the peak at the end, as in Hoffmann et al. (2022)
_WEIGHT_DECAY = 0.1  # as in Brown et al. (2020), appendix B
# The second is between PyTorch's default, whose memory of 1,000 steps is longer than the demo, and
# the 0.95 of large runs, with which this small batch's gradient norms are less even.
_BETAS = (0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step, as told to whoever watches."""

    step: int
    loss: float
    grad_norm: float
    seconds: float
    anomalies: list[Anomaly]


class TrainingLoop:
    """Trains a model; one of these on every rank.

    Args:
        settings: Of the run.
        model: The weights.
        batches: The text, this rank's share.
        exporter: Judges each step.
        fault: What goes wrong.
        rank: This process; rank 0 writes the checkpoints.
        on_step: Called after each step.
    """

    def __init__(
        self,
        settings: DemoSettings,
        *,
        model: GPT,
        batches: Batches,
        exporter: HealthExporter,
        fault: Fault,
        rank: int,
        on_step: Callable[[Step], None],
    ) -> None:
        self._settings = settings
        self._model = model
        self._batches = batches
        self._exporter = exporter
        self._fault = fault
        self._rank = rank
        self._on_step = on_step
        self._first_step = 0
        self._resumed = False
        # Gradients are averaged over the ranks where there are several, or may be.
        self._parallel: nn.Module = (
            nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
        )
        self._optimizer = self._new_optimizer(settings.learning_rate)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._schedule)

    def resume(self, checkpoint: Checkpoint, *, lossy: bool = False) -> None:
        """Go on from a checkpoint.

        Args:
            checkpoint: Of this run.
            lossy: Take only the weights from it, and a learning rate that is far too large.
        """
        self._model.load_state_dict(checkpoint.model)
        if lossy:
            rate = self._settings.learning_rate * LOSSY_LEARNING_RATE_FACTOR
            self._optimizer = self._new_optimizer(rate)
            self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda _: 1.0)
        else:
            self._optimizer.load_state_dict(checkpoint.optimizer)
            self._scheduler.load_state_dict(checkpoint.scheduler)
            torch.set_rng_state(checkpoint.rng)
        self._exporter.load_state_dict(checkpoint.health)
        self._first_step = checkpoint.next_step
        self._resumed = True

    def run(self) -> None:
        """Train to the last step."""
        before = time.perf_counter()
        for step in range(self._first_step, self._settings.steps):
            loss, grad_norm = self._step(step)
            anomalies = self._exporter.observe_step(
                step,
                loss,
                grad_norm=grad_norm,
                batch_size=self._settings.batch_size,
                restart=self._resumed and step == self._first_step,
            )
            now = time.perf_counter()
            self._on_step(
                Step(
                    step=step,
                    loss=loss,
                    grad_norm=grad_norm,
                    seconds=now - before,
                    anomalies=anomalies,
                )
            )
            if (step + 1) % self._settings.checkpoint_every == 0:
                with self._exporter.phase("checkpoint"):
                    self._save(step + 1)
            before = time.perf_counter()
            self._fault.after_step(step)

    def _step(self, step: int) -> tuple[float, float]:
        """Loss, the mean over all ranks, and gradient norm before clipping."""
        exporter = self._exporter
        with exporter.phase("data"):
            self._fault.in_data(step)
            tokens_BT = self._fault.damaged(step, self._batches.batch(step))
        with exporter.phase("forward"), self._fault.during_forward(step, self._model):
            loss = self._parallel(tokens_BT[:, :-1], tokens_BT[:, 1:])
        with exporter.phase("backward"):
            self._optimizer.zero_grad()
            loss.backward()
        with exporter.phase("optimizer"):
            grad_norm = float(nn.utils.clip_grad_norm_(self._model.parameters(), _MAX_GRAD_NORM))
            # A gradient that is not finite would end the run for good; the step is skipped, as
            # trainers with loss scaling do. Every rank decides alike: the gradient is the mean.
            if math.isfinite(grad_norm):
                self._optimizer.step()
            self._scheduler.step()
            mean_loss = loss.detach()
            if dist.is_initialized():
                dist.all_reduce(mean_loss, op=dist.ReduceOp.SUM)
                mean_loss = mean_loss / dist.get_world_size()
        return float(mean_loss), grad_norm

    def _save(self, next_step: int) -> None:
        """Rank 0 writes; the others wait for it here and not in the next step."""
        if self._rank == 0:
            Checkpoint(
                next_step=next_step,
                model=self._model.state_dict(),
                optimizer=self._optimizer.state_dict(),
                scheduler=self._scheduler.state_dict(),
                rng=torch.get_rng_state(),
                health=self._exporter.state_dict(),
            ).save(self._settings.checkpoint_path)
        if dist.is_initialized():
            dist.barrier()

    def _new_optimizer(self, learning_rate: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self._model.parameters(),
            lr=learning_rate,
            betas=_BETAS,
            weight_decay=_WEIGHT_DECAY,
        )

    def _schedule(self, step: int) -> float:
        """Share of the peak learning rate: a linear rise, then a cosine down to the final share."""
        warmup = self._settings.warmup_steps
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, self._settings.steps - warmup))
        cosine = (1 + math.cos(math.pi * done)) / 2
        return _FINAL_LEARNING_RATE + (1 - _FINAL_LEARNING_RATE) * cosine
