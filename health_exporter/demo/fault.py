"""Ways to break a training run. They are real: the loss is NaN, the process dead."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from health_exporter.demo.model import GPT

# With no second moments to scale them, the optimizer's first updates are as large as the rate, and
# this is a rate at which no model trains, as after a units error: the loss more than doubles in one
# step, for every seed and at every point of the schedule.
LOSSY_LEARNING_RATE_FACTOR = 50.0

# A damaged block of a data file spans a few batches.
_DAMAGED_STEPS = 2


class Fault:
    """No fault; and the points of the training loop at which the others act.

    Args:
        at_step: Step in which it happens; None for never.
        on_last_rank: Whether this process is the last rank, which a fault of one rank happens to.
        announce: Called with the step just before the fault happens, on the last rank.
    """

    help: ClassVar[str] = "a healthy run"
    kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of anomaly of which one must be in the receipt."""
    resumes: ClassVar[bool] = False
    """New processes go on from the checkpoint."""
    lossy: ClassVar[bool] = False
    """They go on from its weights alone."""
    holds: ClassVar[bool] = False
    """Nothing ends by itself: the launcher waits, and ends the job."""
    needs_peer: ClassVar[bool] = False
    """The rank that it happens to is not rank 0."""
    judged_by_baseline: ClassVar[bool] = False
    """To be found it needs steps before it."""

    def __init__(
        self, at_step: int | None, *, on_last_rank: bool, announce: Callable[[int], None]
    ) -> None:
        self.at_step = at_step
        self.on_last_rank = on_last_rank
        self.announce = announce

    def in_data(self, step: int) -> None:
        """While the rank waits for its batch."""

    def damaged(self, step: int, tokens_BT: torch.Tensor) -> torch.Tensor:
        """The batch that the rank is given."""
        return tokens_BT

    @contextlib.contextmanager
    def during_forward(self, step: int, model: GPT) -> Iterator[None]:
        """Around the forward pass."""
        yield

    def after_step(self, step: int) -> None:
        """When the step has been observed and, where due, saved."""


class NaN(Fault):
    """One weight of one rank is NaN for one forward pass, and whole again after it."""

    help = "the loss is NaN in one step"
    kinds = frozenset({"nan_inf_loss"})

    @contextlib.contextmanager
    def during_forward(self, step: int, model: GPT) -> Iterator[None]:
        if step != self.at_step or not self.on_last_rank:
            yield
            return
        self.announce(step)
        weight = model.norm.weight.data  # .data: autograd must not see the repair as a change
        whole = weight[0].clone()
        weight[0] = float("nan")
        try:
            yield
        finally:
            weight[0] = whole


class LossSpike(Fault):
    """A damaged block of data: every bit is turned, into bytes that the model has never seen."""

    help = "damaged data for two steps: the loss jumps"
    kinds = frozenset({"loss_spike"})
    judged_by_baseline = True

    def damaged(self, step: int, tokens_BT: torch.Tensor) -> torch.Tensor:
        if self.at_step is None or not 0 <= step - self.at_step < _DAMAGED_STEPS:
            return tokens_BT
        if step == self.at_step and self.on_last_rank:
            self.announce(step)
        return tokens_BT ^ 0xFF


class Crash(Fault):
    """An exception that nobody catches, on every rank."""

    help = "an uncaught exception in the training loop"

    def in_data(self, step: int) -> None:
        if step == self.at_step:
            if self.on_last_rank:
                self.announce(step)
            raise RuntimeError(f"demo fault: the batch of step {step} cannot be read")


class Resume(Fault):
    """The job is ended between two checkpoints, as by a scheduler; a new one goes on."""

    help = "ended between checkpoints and resumed in full: nothing to find"
    resumes = True

    def after_step(self, step: int) -> None:
        if step == self.at_step:
            if self.on_last_rank:
                self.announce(step)
            signal.raise_signal(signal.SIGTERM)


class LossyResume(Resume):
    """The same end, but the new job takes only the weights, and a wrong learning rate."""

    help = "resumed without the optimizer's state, at a wrong learning rate: the loss jumps"
    kinds = frozenset({"restart_discontinuity"})
    lossy = True
    judged_by_baseline = True


class KillRank(Fault):
    """The last rank is killed: no handler runs."""

    help = "SIGKILL to the last rank"
    kinds = frozenset({"dead_rank"})
    needs_peer = True
    signal_number: ClassVar[signal.Signals] = signal.SIGKILL

    def in_data(self, step: int) -> None:
        if step == self.at_step and self.on_last_rank:
            self.announce(step)
            os.kill(os.getpid(), self.signal_number)


class StopRank(KillRank):
    """The last rank is stopped: its sockets stay open, but no thread of it answers."""

    help = "SIGSTOP to the last rank"
    kinds = frozenset({"dead_rank", "stuck_rank"})
    holds = True
    signal_number = signal.SIGSTOP


class HangRank(Fault):
    """The last rank waits for its data for ever; its endpoint goes on answering."""

    help = "the last rank waits for its data for ever"
    kinds = frozenset({"stuck_rank"})
    holds = True
    needs_peer = True

    def in_data(self, step: int) -> None:
        if step != self.at_step or not self.on_last_rank:
            return
        self.announce(step)
        while True:
            time.sleep(3600)


FAULTS: dict[str, type[Fault]] = {
    "none": Fault,
    "resume": Resume,
    "lossy-resume": LossyResume,
    "nan": NaN,
    "loss-spike": LossSpike,
    "crash": Crash,
    "kill-rank": KillRank,
    "hang-rank": HangRank,
    "stop-rank": StopRank,
}
"""Every fault by the name that the command line has for it."""
