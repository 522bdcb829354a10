"""16,384 ranks on one machine: what their beats cost the store and rank 0."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator

import pytest

from health_exporter.core.verdict import Beat, RankBoard
from health_exporter.runtime.link import Link
from health_exporter.runtime.store import JobStore

distributed = pytest.importorskip("torch.distributed")

INTERVAL_S = 5.0


def beat_of(rank: int, beats: int, **changes: object) -> Beat:
    values = {
        "rank": rank,
        "host": f"gpu-{rank // 8:04}.cluster.example",
        "address": f"gpu-{rank // 8:04}.cluster.example:{19400 + rank % 8}",
        "pid": 10_000 + rank % 8,
        "beats": beats,
        "progress": 40 + beats,
        "step": 10 + beats,
        "phase": "forward",
        "state": "running",
        "still_s": 0.5,
        "timeout_s": 30.0,
        "process": "0b6b6cb5-6f5e-4d39-8f5b-6a4ea2b1a7a5/4026531836/10000/123456",
    }
    return Beat(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def n_ranks(quick: bool) -> int:
    return 512 if quick else 16_384


@pytest.fixture
def port() -> Iterator[int]:
    server = distributed.TCPStore(
        "127.0.0.1", 0, None, True, datetime.timedelta(seconds=30), wait_for_workers=False
    )
    yield server.port
    del server


def test_a_full_read_of_all_beats(n_ranks: int, quick: bool, port: int):
    store = JobStore("scale", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).connect(
        may_import=True
    )
    assert store is not None

    def send(beats: int) -> float:
        encoded = [beat_of(rank, beats).encode() for rank in range(1, n_ranks)]
        began = time.perf_counter()
        for rank, raw in enumerate(encoded, start=1):
            store.set(f"{rank}", raw)
        store.get("1")  # the store has taken them in
        return time.perf_counter() - began

    send(1)
    store.append("roster", ",".join(str(rank) for rank in range(1, n_ranks)).encode() + b",")
    link = Link(0, n_ranks, lambda: store, 10.0)
    link.exchange(beat_of(0, 1))
    timings = []
    for beats in range(2, 4 if quick else 8):
        sending = send(beats)
        began, cpu = time.perf_counter(), time.thread_time()
        read = link.exchange(beat_of(0, beats))
        timings.append((time.perf_counter() - began, time.thread_time() - cpu, sending))
        assert read is not None
        assert [beat.beats for beat in read] == [beats] * n_ranks
    best = min(timings)
    print(
        f"\n{n_ranks} ranks: a full read in {best[0]:.3f} s, {best[1]:.3f} s of it on this "
        f"thread's CPU (decoding included); {n_ranks / best[2]:,.0f} sets/s through one connection"
    )
    if not quick:
        assert best[0] < INTERVAL_S / 2


@pytest.mark.parametrize("still_s", [0.5, 60.0], ids=["all move", "all stand still"])
def test_a_judgement_of_all_ranks(n_ranks: int, quick: bool, still_s: float):
    board = RankBoard(n_ranks, now=0.0)
    observed, judged = [], []
    for beats in range(1, 4 if quick else 12):
        now = INTERVAL_S * beats
        newest = [beat_of(rank, beats, still_s=still_s) for rank in range(n_ranks)]
        began = time.perf_counter()
        board.observe(newest, now)
        observed.append(time.perf_counter() - began)
        began = time.perf_counter()
        standing = board.judge(now)
        judged.append(time.perf_counter() - began)
        assert standing.counts["stuck" if still_s > 30 else "alive"] == n_ranks
    print(
        f"\n{n_ranks} ranks: observe {min(observed) * 1e3:.1f} ms, "
        f"judge {min(judged) * 1e3:.1f} ms at best, {max(judged) * 1e3:.1f} ms at worst"
    )
    if not quick:
        assert min(observed) + min(judged) < 0.1
