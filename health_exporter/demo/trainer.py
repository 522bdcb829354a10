"""The program of one rank; the launcher has torchrun start it.

torchrun --standalone --nproc-per-node 2 -m health_exporter.demo.trainer health-demo/demo.json 0
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from health_exporter.demo.event import emit
from health_exporter.demo.fault import FAULTS
from health_exporter.demo.settings import DemoSettings

if TYPE_CHECKING:
    from health_exporter import HealthExporter, TrainingHealthMonitor
    from health_exporter.demo.loop import Step, TrainingLoop
    from health_exporter.demo.model import GPT

log = logging.getLogger(__name__)

# After the launcher's end a rank has this long for its receipt before it is ended by force.
_GRACE_S = 10.0


def main(argv: Sequence[str]) -> None:
    """Train as one rank.

    Args:
        argv: The file of the settings, and the number of the attempt: 0, or 1 after a resume.
    """
    rank = int(os.environ["RANK"])
    # Before torch is imported, which takes seconds: from here on the launcher can end this process.
    emit("started", rank=rank, pid=os.getpid())
    threading.Thread(target=_end_with_launcher, name="lifeline", daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_EventHandler()])
    try:
        _train(DemoSettings.read(Path(argv[0])), rank=rank, attempt=int(argv[1]))
    except Exception as error:
        log.error("rank %d: %s: %s", rank, type(error).__name__, error)
        raise


def _train(settings: DemoSettings, *, rank: int, attempt: int) -> None:
    import torch
    import torch.distributed as dist

    from health_exporter import HealthExporter, TrainingHealthMonitor, flop_config_from_causal_lm
    from health_exporter.demo.checkpoint import Checkpoint
    from health_exporter.demo.peak import measured_peak_flops_per_sec

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(settings.seed)
    model = _model(settings)
    rank_peak = measured_peak_flops_per_sec()
    monitor = TrainingHealthMonitor.production(
        flop_config=flop_config_from_causal_lm(model, settings.seq_len),
        # Of the whole job, as is the batch size that each step is observed with.
        peak_flops_per_sec=rank_peak * settings.ranks,
    )
    # Before the process group: were a rank missing, the others would be seen to wait for it.
    with HealthExporter(
        monitor,
        run=settings.run,
        port=settings.port,
        receipt_dir=settings.receipt_dir,
        linger_s=settings.linger_s,
        model="demo-gpt",
    ) as exporter:
        n_params = sum(weight.numel() for weight in model.parameters())
        emit("serving", rank=rank, port=exporter.port, rank_peak=rank_peak, n_params=n_params)
        # Longer than a hung rank is left so: it is the launcher that ends such a job.
        dist.init_process_group("gloo", timeout=timedelta(seconds=300 + settings.fault_hold_s))
        loop = _loop(settings, model, monitor, exporter, rank=rank, attempt=attempt)
        if attempt:
            lossy = FAULTS[settings.fault].lossy
            loop.resume(Checkpoint.load(settings.checkpoint_path), lossy=lossy)
        loop.run()
    dist.destroy_process_group()


def _model(settings: DemoSettings) -> GPT:
    from health_exporter.demo.corpus import VOCABULARY
    from health_exporter.demo.model import GPT

    return GPT(
        vocabulary=VOCABULARY,
        n_layer=settings.n_layer,
        n_head=settings.n_head,
        d_model=settings.d_model,
        seq_len=settings.seq_len,
    )


def _loop(
    settings: DemoSettings,
    model: GPT,
    monitor: TrainingHealthMonitor,
    exporter: HealthExporter,
    *,
    rank: int,
    attempt: int,
) -> TrainingLoop:
    from health_exporter.demo.batch import Batches
    from health_exporter.demo.corpus import read_corpus
    from health_exporter.demo.loop import TrainingLoop

    return TrainingLoop(
        settings,
        model=model,
        batches=Batches(
            read_corpus(),
            batch_size=settings.batch_per_rank,
            seq_len=settings.seq_len,
            seed=settings.seed,
            rank=rank,
        ),
        exporter=exporter,
        fault=FAULTS[settings.fault](
            settings.fault_step if attempt == 0 else None,  # it happens once
            on_last_rank=rank == settings.ranks - 1,
            announce=lambda step: emit("fault", rank=rank, pid=os.getpid(), step=step),
        ),
        rank=rank,
        on_step=_teller(settings, monitor) if rank == 0 else lambda step: None,
    )


def _teller(settings: DemoSettings, monitor: TrainingHealthMonitor) -> Callable[[Step], None]:
    """Tells the launcher of each step."""
    n_tokens = settings.batch_size * settings.seq_len

    def tell(step: Step) -> None:
        emit(
            "step",
            step=step.step,
            loss=step.loss,
            grad_norm=step.grad_norm,
            tokens_per_second=n_tokens / step.seconds,
            mfu=monitor.run.mfu,
            anomalies=[anomaly.kind for anomaly in step.anomalies],
        )

    return tell


def _end_with_launcher() -> None:
    """End this process when the launcher has gone, however it went.

    The standard input is a pipe that only the launcher holds open; read without the buffered
    reader, whose lock would be held at the interpreter's exit.
    """
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)  # the training thread is in native code, or stuck


class _EventHandler(logging.Handler):
    """Hands the log to the launcher."""

    def emit(self, record: logging.LogRecord) -> None:
        # Cut to what one write can hold.
        emit("log", level=record.levelname, message=self.format(record)[:3000])


if __name__ == "__main__":
    main(sys.argv[1:])
