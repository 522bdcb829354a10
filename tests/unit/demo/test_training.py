"""The training loop on one process, whole and broken, with a real exporter in it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from health_exporter import HealthExporter
from health_exporter.demo.batch import Batches
from health_exporter.demo.checkpoint import Checkpoint
from health_exporter.demo.corpus import VOCABULARY, read_corpus
from health_exporter.demo.fault import FAULTS
from health_exporter.demo.loop import Step, TrainingLoop
from health_exporter.demo.model import GPT
from health_exporter.demo.settings import DemoSettings

STEPS = 64
AT = 40  # after a multiple of the 8 steps from one checkpoint to the next


class Trained:
    """One process's part of a run."""

    def __init__(self, folder: Path, text: bytes, *, fault: str = "none", steps: int = STEPS):
        self.steps: list[Step] = []
        self.announced: list[int] = []
        self.settings = DemoSettings(
            steps=steps, ranks=1, out=str(folder), n_layer=1, n_head=2, d_model=32, seq_len=16
        )
        settings = self.settings
        torch.manual_seed(0)
        self.model = GPT(vocabulary=VOCABULARY, n_layer=1, n_head=2, d_model=32, seq_len=16)
        self.exporter = HealthExporter(
            run="unit", port=None, receipt_dir=folder / "receipts", linger_s=0, strict=True
        )
        self.loop = TrainingLoop(
            settings,
            model=self.model,
            batches=Batches(text, batch_size=32, seq_len=16, seed=0, rank=0),
            exporter=self.exporter,
            fault=FAULTS[fault](AT, on_last_rank=True, announce=self.announced.append),
            rank=0,
            on_step=self.steps.append,
        )

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]


@pytest.fixture(scope="module")
def text() -> bytes:
    return read_corpus(limit=200_000)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, text: bytes, _one_thread: None) -> Trained:
    trained = Trained(tmp_path_factory.mktemp("healthy"), text)
    with trained.exporter:
        trained.loop.run()
    return trained


def test_the_loss_falls(healthy: Trained):
    assert sum(healthy.losses[-3:]) < sum(healthy.losses[:3]) - 3


def test_every_step_is_observed_once(healthy: Trained):
    assert [step.step for step in healthy.steps] == list(range(STEPS))
    assert healthy.exporter.report()["n_steps"] == STEPS


def test_the_marked_phases_have_taken_time(healthy: Trained):
    seconds = healthy.exporter.rank_view().phase_seconds

    assert all(
        seconds[phase] > 0 for phase in ("data", "forward", "backward", "optimizer", "checkpoint")
    )


def test_nan_is_in_the_loss_of_one_step_and_then_gone(tmp_path: Path, text: bytes):
    trained = Trained(tmp_path, text, fault="nan")
    with trained.exporter:
        trained.loop.run()

    assert [i for i, loss in enumerate(trained.losses) if math.isnan(loss)] == [AT]
    assert all(bool(weight.isfinite().all()) for weight in trained.model.parameters())
    assert trained.announced == [AT]
    assert {a.kind for a in trained.steps[AT].anomalies} == {"nan_inf_loss", "nan_inf_grad"}


def test_damaged_data_makes_the_loss_jump_while_it_lasts(
    tmp_path: Path, text: bytes, healthy: Trained
):
    trained = Trained(tmp_path, text, fault="loss-spike")
    with trained.exporter:
        trained.loop.run()

    before, during, after = trained.losses[:AT], trained.losses[AT : AT + 2], trained.losses[-1]
    assert before == healthy.losses[:AT]
    assert min(during) - 1 > max(*before[-5:], after)
    assert trained.announced == [AT]


def test_a_crash_is_an_exception_in_its_step(tmp_path: Path, text: bytes):
    trained = Trained(tmp_path, text, fault="crash")
    with pytest.raises(RuntimeError, match=f"step {AT}"), trained.exporter:
        trained.loop.run()

    assert len(trained.steps) == AT
    assert trained.exporter.report()["status"] == "failed"


def test_a_resume_goes_on_exactly_as_if_nothing_had_been(
    tmp_path: Path, text: bytes, healthy: Trained
):
    resumed = Trained(tmp_path, text)
    with resumed.exporter:
        resumed.loop.resume(_checkpoint_at(AT, tmp_path / "first", text))
        resumed.loop.run()

    assert [step.step for step in resumed.steps] == list(range(AT, STEPS))
    assert resumed.losses == healthy.losses[AT:]
    restarts = resumed.exporter.report()["restarts"]
    assert (restarts["n"], restarts["continuity_ok"]) == (1, True)


def test_after_a_lossy_resume_the_loss_jumps_with_the_first_update(
    tmp_path: Path, text: bytes, healthy: Trained
):
    resumed = Trained(tmp_path, text)
    with resumed.exporter:
        resumed.loop.resume(_checkpoint_at(AT, tmp_path / "first", text), lossy=True)
        resumed.loop.run()

    assert resumed.losses[0] == healthy.losses[AT]
    assert resumed.losses[1] > healthy.losses[AT + 1] + 1


def test_a_checkpoint_replaces_the_one_before_it(healthy: Trained):
    path = healthy.settings.checkpoint_path

    assert Checkpoint.load(path).next_step == STEPS
    assert [p.name for p in path.parent.glob("checkpoint*")] == ["checkpoint.pt"]


def _checkpoint_at(step: int, folder: Path, text: bytes) -> Checkpoint:
    """The checkpoint of a run like the others that was ended just after `step` steps."""
    folder.mkdir()
    trained = Trained(folder, text, fault="crash")  # in step AT
    with pytest.raises(RuntimeError), trained.exporter:
        trained.loop.run()
    checkpoint = Checkpoint.load(trained.settings.checkpoint_path)
    assert checkpoint.next_step == step
    return checkpoint
