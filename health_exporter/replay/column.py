"""Which column is the loss: names of columns, keys and tags, taken for fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from health_exporter.replay.error import LogError
from health_exporter.replay.number import number, unix_time
from health_exporter.replay.row import FIELDS

# Values of a column that are looked at to tell what it is.
_SAMPLED = 64

_RUN = re.compile(r"^(.*\S) - (\S.*)$")  # Weights & Biases: "run-a - train/loss"
_EXTREME = re.compile(r"__(MIN|MAX)$")
_SPLIT = re.compile(r"[^a-z0-9]+")

# In these, a word means that the column is not of training steps, or not the thing itself.
_NOT_TRAINING = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_NOT_LOSS = frozenset({"scale", "scaler", "min", "max", "std", "best", "lr", "n", "count", "delta"})
_LESSER = frozenset({"epoch", "avg", "mean", "ema", "smooth", "smoothed", "running", "aux", "z",
                     "balancing", "mtp", "average"})  # fmt: skip

_STEPS = (
    "train_global_step", "trainer_global_step", "global_step", "optimizer_step", "num_updates",
    "iteration", "train_step", "training_step", "step", "steps", "iter", "iters", "it", "update",
    "updates", "n_iter", "train_iter", "iter_num", "step_num", "metadata_step_num", "_step",
    "batch", "batches",
)  # fmt: skip
_GRAD_NORMS = (
    "grad_norm", "gradient_norm", "gradnorm", "gnorm", "grad_norm_total", "total_grad_norm",
    "global_grad_norm", "grad_norm_global", "total_norm", "grad_2_0_norm_total",
    "grad_2_norm_total", "grad_norm_before_clip", "norm",
)  # fmt: skip
_STEP_TIMES = (
    "step_time_s", "step_time", "step_time_ms", "iter_time", "iter_time_s", "iter_time_ms",
    "iteration_time", "time_per_step", "seconds_per_step", "sec_per_step", "s_per_step",
    "train_step_timing_in_s", "train_step_time", "train_step_timing", "step_duration",
    "step_duration_s", "time_per_iteration", "elapsed_time_per_iteration_ms", "ms_batch",
    "ms_per_step", "batch_time", "time_step", "dt", "dt_ms", "dt_s", "step_ms", "time_ms",
    "time_metrics_end_to_end_s", "end_to_end_s", "s_it", "time_s",
)  # fmt: skip
_RATES = ("lr", "learning_rate", "train_lr", "train_learning_rate", "learningrate", "lr_0")
_TIMES = ("_timestamp", "timestamp", "wall_time", "created_at", "datetime", "date", "ts",
          "time_ms", "walltime", "time", "asctime", "_time")  # fmt: skip
_RESTARTS = ("restart", "resumed", "resume", "is_restart", "restarted")


@dataclass(slots=True)
class Sample:
    """What was seen of one column.

    Args:
        n: Values that were there.
        values: The first of them.
    """

    n: int = 0
    values: list[Any] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """One more value."""
        self.n += 1
        if len(self.values) < _SAMPLED:
            self.values.append(value)

    def numeric(self) -> bool:
        """Whether most values are numbers."""
        good = 0
        for value in self.values:
            try:
                good += not isinstance(value, bool) and number(value) is not None
            except ValueError:
                continue
        return 2 * good > len(self.values)


def collect(records: Iterable[Mapping[str, Any]]) -> dict[str, Sample]:
    """Samples of all columns of the records, in the order in which they appear."""
    samples: dict[str, Sample] = {}
    for record in records:
        for name, value in record.items():
            if value is not None and value != "":
                samples.setdefault(name, Sample()).add(value)
    return samples


def choose(samples: Mapping[str, Sample], named: Mapping[str, str]) -> dict[str, str]:
    """Field to column: as named by the user, else as guessed; without a loss there is none.

    Raises:
        LogError: A column that the user named does not exist.
    """
    for name, column in named.items():
        if name not in FIELDS:
            raise LogError(f"--map {name}=...: the fields are {', '.join(FIELDS)}")
        if column not in samples:
            raise LogError(f"--map {name}={column}: {_known(samples)}")
    chosen = dict(named)
    if "loss" not in chosen and (loss := _guess_loss(samples)) is not None:
        chosen["loss"] = loss
    if "loss" not in chosen:
        return {}
    run = _run_of(chosen["loss"])
    own = {
        name: sample
        for name, sample in samples.items()
        if not _EXTREME.search(name) and _run_of(name) in (run, "")
    }
    for name, known in (
        ("step", _STEPS),
        ("grad_norm", _GRAD_NORMS),
        ("step_time_s", _STEP_TIMES),
        ("lr", _RATES),
        ("time", _TIMES),
        ("restart", _RESTARTS),
    ):
        if name not in chosen:
            guess = _guess(name, known, own, set(chosen.values()))
            if guess is not None:
                chosen[name] = guess
    return {name: chosen[name] for name in FIELDS if name in chosen}


def missing_loss(samples: Mapping[str, Sample]) -> LogError:
    """The error for a file in which no column is a loss."""
    return LogError(
        f"no column is a training loss (name it with --map loss=NAME): {_known(samples)}"
    )


def factor_of(column: str) -> float:
    """Seconds in one unit of a column with step times: 0.001 where its name says ms."""
    words = _words(column)
    return 1e-3 if "ms" in words or "milliseconds" in words else 1.0


def runs_of(samples: Mapping[str, Sample]) -> list[str]:
    """Names of the runs in an export of several, in the order of their columns."""
    return list(dict.fromkeys(filter(None, map(_run_of, samples))))


def _known(samples: Mapping[str, Sample]) -> str:
    names = list(samples)
    shown = ", ".join(repr(name) for name in names[:30])
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return f"the columns are {shown}{more}" if names else "there are no columns"


def _run_of(name: str) -> str:
    match = _RUN.match(name)
    return match.group(1) if match else ""


def _bare(name: str) -> str:
    match = _RUN.match(name)
    return match.group(2) if match else name


def _words(name: str) -> list[str]:
    return [word for word in _SPLIT.split(_bare(name).lower()) if word]


def _guess_loss(samples: Mapping[str, Sample]) -> str | None:
    best: tuple[float, int] | None = None
    found = None
    for name, sample in samples.items():
        score = _loss_score(name)
        if score <= 0.0 or not sample.numeric():
            continue
        if best is None or (score, sample.n) > best:
            best, found = (score, sample.n), name
    return found


def _loss_score(name: str) -> float:
    """How much a name looks like the training loss; 0.0: not at all."""
    words = _words(name)
    flat = "_".join(words)
    if _EXTREME.search(name) or _NOT_TRAINING.intersection(words) or _NOT_LOSS.intersection(words):
        return 0.0
    if flat.endswith("vs_samples"):  # Megatron-LM's second curve, whose steps are samples
        return 0.0
    if flat in ("loss", "train_loss", "training_loss", "loss_train", "train_loss_step"):
        return 10.0
    if flat in ("lm_loss", "reduced_train_loss", "trl", "loss_step"):
        return 9.0
    if flat in ("total_loss", "loss_total", "train_total_loss", "loss_sum"):
        return 8.0
    if "loss" not in words:
        ending = words[-1] if words else ""
        return (
            4.0
            if ending.endswith("loss") or flat in ("nll", "cross_entropy", "crossentropy", "ce")
            else 0.0
        )
    score = 6.0 if words[-1] == "loss" else 5.0
    return score - 2.0 * len(_LESSER.intersection(words)) + 0.5 * ("train" in words)


def _guess(
    name: str, known: tuple[str, ...], samples: Mapping[str, Sample], taken: set[str]
) -> str | None:
    """The column whose name comes first among the known ones; prefixes such as `train/` may stand
    before it.
    """
    best: tuple[int, int] | None = None
    found = None
    for column, sample in samples.items():
        if column in taken or _NOT_TRAINING.intersection(_words(column)):
            continue
        rank = _rank(column, known)
        if rank is None or not _suits(name, column, sample):
            continue
        if best is None or rank < best:
            best, found = rank, column
    return found


def _rank(column: str, known: tuple[str, ...]) -> tuple[int, int] | None:
    bare = _bare(column).lower()
    flat = "_".join(_words(column))
    for index, candidate in enumerate(known):
        if bare == candidate or flat == candidate:
            return (0, index)
    last = "_".join(_words(re.split(r"[/.]", bare)[-1]))
    for index, candidate in enumerate(known):
        if last == candidate or (candidate == "lr" and last.startswith("lr_")):
            return (1, index)
    return None


def _suits(name: str, column: str, sample: Sample) -> bool:
    """Whether the values can be what the name says."""
    if name == "time":
        return any(unix_time(value) is not None for value in sample.values)
    if name == "restart":
        return True
    if not sample.numeric():
        return False
    if name == "step_time_s":
        # A duration, not a clock: "time_ms" is both, in different loggers.
        return not any(unix_time(value) is not None for value in sample.values)
    return True
