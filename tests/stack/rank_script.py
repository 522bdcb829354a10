"""A trainer whose ranks wait for each other in a gloo all-reduce, and one of which goes wrong.

    rank_script.py RECEIPT_DIR PORT_FILE_DIR FAULT BAD_RANK [KEY=VALUE ...]

Each rank writes its port into PORT_FILE_DIR. The fault happens at step 15 of rank BAD_RANK. Phases
are marked by `marked_by`: `nobody`, `all` ranks, or the `bad` one alone, where it goes wrong.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

from health_exporter import HealthExporter

AT_STEP = 15
STEP_S = 0.05
TIMES = {
    "beat_interval_s": 0.5,
    "beat_timeout_s": 4.0,
    "heartbeat_timeout_s": 4.0,
    "startup_timeout_s": 30.0,
    "linger_s": 0.0,
}


def go_wrong(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "os_exit":
        os._exit(7)
    elif fault == "raise":
        raise ValueError("the data is broken")
    elif fault == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "hang":
        threading.Event().wait()


def main() -> None:
    receipts, ports, fault, bad_rank, *pairs = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    given = dict(pair.split("=") for pair in pairs)
    steps, first = int(given.pop("steps", "100000")), int(given.pop("first", "0"))
    marked_by = given.pop("marked_by", "nobody")
    settings = {**TIMES, **{key: float(value) for key, value in given.items()}}
    with HealthExporter(run="run", port=0, receipt_dir=receipts, **settings) as exporter:  # type: ignore[arg-type]
        rank = exporter.rank
        assert exporter.port is not None
        draft = Path(ports) / f".{rank}"
        draft.write_text(str(exporter.port))
        draft.rename(Path(ports) / str(rank))
        dist.init_process_group("gloo")
        gradient = torch.zeros(1)
        for step in range(first, first + steps):
            bad = rank == int(bad_rank) and step == first + AT_STEP
            if marked_by == "all":
                with exporter.phase("data"):
                    time.sleep(STEP_S)
                    if bad and fault == "hang":
                        go_wrong(fault)
                with exporter.phase("backward"):
                    dist.all_reduce(gradient)
            else:
                time.sleep(STEP_S)
                if bad:
                    with exporter.phase("data") if marked_by == "bad" else nullcontext():
                        go_wrong(fault)
                dist.all_reduce(gradient)
            if fault == "checkpoint" and step == first + AT_STEP:
                with exporter.phase("checkpoint"):
                    time.sleep(3.0 * settings["heartbeat_timeout_s"] if rank == 0 else 0.1)
                    dist.barrier()
            exporter.observe_step(step, 2.0 + 0.01 * (step % 7), grad_norm=1.0 + 0.01 * (step % 5))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
