"""What the list of a large job's targets costs rank 0, at each refresh of Prometheus (60 s)."""

from __future__ import annotations

import gc
import json
import time

from health_exporter.core.beat import Beat
from health_exporter.core.verdict import RankBoard
from health_exporter.runtime.target import Target, render, standing_targets

WORLD_SIZE = 16_384
RANKS_PER_HOST = 8

# About 70 ms were measured; this fails when the cost grows faster than the number of ranks.
MOST_S = 1.0


def _beat(rank: int) -> Beat:
    host = f"gpu-{rank // RANKS_PER_HOST:04d}.cluster.example"
    return Beat(
        rank=rank,
        host=host,
        address=f"{host}:{19400 + rank % RANKS_PER_HOST}",
        pid=1,
        beats=1,
        progress=1,
        step=1,
        phase="",
        state="running",
        still_s=0.0,
        timeout_s=60.0,
    )


def test_the_targets_of_16384_ranks(quick: bool) -> None:
    board = RankBoard(WORLD_SIZE, now=0.0)
    board.observe(map(_beat, range(WORLD_SIZE)), 1.0)
    standing = board.judge(1.0)
    own = Target(address=_beat(0).address, run="llama-8b", host=_beat(0).host, rank=0, local_rank=0)
    taken = []
    gc.collect()
    for _ in range(1 if quick else 20):
        began = time.thread_time()
        text = render(standing_targets(own, standing, linger_s=20.0))
        taken.append(time.thread_time() - began)

    print(
        f"\n/targets of {WORLD_SIZE} ranks: {sorted(taken)[len(taken) // 2] * 1e3:.0f} ms of one "
        f"core, {len(text) / 1e6:.1f} MB"
    )
    assert len(json.loads(text)) == WORLD_SIZE
    assert quick or min(taken) < MOST_S
