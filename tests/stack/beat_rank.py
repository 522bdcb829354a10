"""One rank of the jobs in test_beat_processes.py: beats, does what stdin says, tells what it sees.

Each line of stdin is a command: `step`, `marks N`, `goodbye STATE`, `end`, `init` (the process
group, as a trainer would). Rank 0 prints a line of JSON whenever the ranks stand differently.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence

from health_exporter.core.verdict import Beat, RankBoard
from health_exporter.runtime.beat import BeatExchange

INTERVAL_S = 0.2
BEAT_TIMEOUT_S = 3.0
STUCK_S = 6.0


class Rank:
    def __init__(self, startup_timeout_s: float) -> None:
        self.rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        self.step, self.marks, self.moved_at = -1, 0, time.monotonic()
        self.told: object = None
        self.board = RankBoard(
            world_size,
            beat_timeout_s=BEAT_TIMEOUT_S,
            startup_timeout_s=startup_timeout_s,
            beat_interval_s=INTERVAL_S,
            now=time.monotonic(),
        )
        self.exchange = BeatExchange(
            rank=self.rank,
            world_size=world_size,
            run="run",
            attempt=0,
            make_beat=self.make_beat,
            on_beats=self.on_beats,
            on_gone=self.board.confirm_gone,
            overdue=self.board.overdue,
            beat_interval_s=INTERVAL_S,
            beat_timeout_s=BEAT_TIMEOUT_S,
            environ=os.environ,
        )

    def make_beat(self) -> Beat:
        starting = self.step < 0
        return Beat(
            rank=self.rank,
            host="host",
            address="",
            pid=os.getpid(),
            beats=0,
            progress=self.step + 1,
            step=self.step,
            phase="",
            state="starting" if starting else "running",
            still_s=time.monotonic() - self.moved_at,
            timeout_s=600.0 if starting else float(os.environ.get("STUCK_S", STUCK_S)),
            marks=self.marks,
        )

    def on_beats(self, beats: Sequence[Beat], connected: bool) -> None:
        now = time.monotonic()
        self.board.observe(beats, now, connected=connected)
        standing = self.board.judge(now)
        seen = {
            "counts": dict(standing.counts),
            "connected": connected,
            "suspects": [[suspect.rank, suspect.reason] for suspect in standing.suspects],
            "states": [row.state for row in standing.rows()],
            "steps": [row.step for row in standing.rows()],
        }
        outages = {
            "begun": [[outage.kind, outage.rank] for outage in standing.begun],
            "ended": [[outage.rank, outage.ending] for outage in standing.ended],
        }
        if seen != self.told or standing.begun or standing.ended:
            self.told = seen
            sys.stdout.write(json.dumps({**seen, **outages}) + "\n")
            sys.stdout.flush()

    def obey(self, command: str, *words: str) -> None:
        if command == "step":
            self.step, self.marks, self.moved_at = self.step + 1, 0, time.monotonic()
        elif command == "marks":
            self.marks, self.moved_at = int(words[0]), time.monotonic()
        elif command == "goodbye":
            self.exchange.say_goodbye(words[0])
        elif command == "init":
            import torch.distributed as distributed

            distributed.init_process_group("gloo")


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    rank = Rank(startup_timeout_s=float(os.environ.get("STARTUP_TIMEOUT_S", "600")))
    rank.exchange.start()
    for line in sys.stdin:
        if line.strip() == "end":
            break
        rank.obey(*line.split())
    # No close(): a trainer may just end.


if __name__ == "__main__":
    main()
