"""Every rule of the verdicts, on a clock that the test moves.

`Job` plays the ranks: every 5 s each living one beats, and rank 0 reads and judges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from health_exporter.core.standing import MAX_SUSPECTS, Outage, Standing
from health_exporter.core.verdict import Beat, RankBoard

INTERVAL_S = 5.0


@dataclass
class Player:
    """One rank as the test wants it to behave."""

    rank: int
    pid: int
    beats: int = 0
    step: int = -1
    marks: int = 0
    phase: str = ""
    state: str = "starting"
    where: str = ""
    timeout_s: float = 600.0
    moved_at: float = 0.0
    absent: bool = False  # has not come, is stopped, or is dead
    standing: bool = False  # its training thread does not move

    def beat(self, now: float) -> Beat:
        self.beats += 1
        return Beat(
            self.rank,
            f"node-{self.rank // 2}",
            f"node-{self.rank // 2}:1940{self.rank % 2}",
            self.pid,
            self.beats,
            self.step + 1,
            self.step,
            self.phase,
            self.state,
            now - self.moved_at,
            self.timeout_s,
            self.where,
            self.marks,
        )


@dataclass
class Job:
    world_size: int
    now: float = 1000.0
    begun: list[Outage] = field(default_factory=list)
    ended: list[Outage] = field(default_factory=list)
    never_came: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board = RankBoard(self.world_size, now=self.now)
        self.ranks = [
            Player(rank, 100 + rank, moved_at=self.now) for rank in range(self.world_size)
        ]
        self.store: dict[int, Beat] = {}
        self.connected = True

    def train(self) -> Job:
        """All ranks are past their warm-up."""
        for rank in self.ranks:
            rank.state, rank.timeout_s, rank.step = "running", 30.0, 100
        return self.run(20)

    def stand_still(self) -> None:
        """A collective: nobody moves any more."""
        for rank in self.ranks:
            rank.standing = True

    def run(self, seconds: float, until: Callable[[Standing], bool] | None = None) -> Job:
        end = self.now + seconds
        while self.now < end:
            self.now += INTERVAL_S
            for rank in self.ranks:
                if rank.absent:
                    continue
                if not rank.standing and rank.state == "running":
                    rank.step, rank.moved_at = rank.step + 5, self.now - 0.5
                if self.connected:
                    self.store[rank.rank] = rank.beat(self.now)
            self.look()
            if until is not None and until(self.standing):
                return self
        assert until is None, f"not within {seconds} s: {self.standing}"
        return self

    def look(self) -> Standing:
        """Rank 0 reads and judges."""
        beats = list(self.store.values()) if self.connected else []
        self.board.observe(beats, self.now, connected=self.connected)
        self.standing = self.board.judge(self.now)
        self.begun += self.standing.begun
        self.ended += self.standing.ended
        self.never_came += self.standing.never_came
        return self.standing

    @property
    def counts(self) -> dict[str, int]:
        return {status: n for status, n in self.standing.counts.items() if n}

    @property
    def suspects(self) -> list[tuple[int, str]]:
        return [(suspect.rank, suspect.reason) for suspect in self.standing.suspects]

    @property
    def accused(self) -> list[tuple[str, int | None]]:
        return [(outage.kind, outage.rank) for outage in self.begun]

    def assert_no_verdict(self) -> None:
        assert (self.begun, self.suspects) == ([], [])
        assert self.standing.counts["dead"] == self.standing.counts["stuck"] == 0


@pytest.fixture
def job() -> Job:
    return Job(4).train()


def test_ranks_that_train_are_alive(job: Job):
    job.run(3600)
    job.assert_no_verdict()
    assert job.counts == {"alive": 4}


# Dead


def test_a_killed_rank_is_dead_and_those_that_wait_for_it_are_not_accused(job: Job):
    job.ranks[2].absent = True
    job.stand_still()
    job.run(300)
    assert job.accused == [("dead_rank", 2)]
    assert job.suspects == [(2, "dead")]
    assert job.counts == {"dead": 1, "stuck": 3}


def test_death_is_found_once_the_beat_timeout_has_passed_and_not_before(job: Job):
    killed_at = job.now
    job.ranks[2].absent = True
    job.run(120, until=lambda standing: standing.counts["dead"] == 1)
    assert 30 < job.now - killed_at <= 40


def test_a_killed_rank_is_never_called_stuck_first(job: Job):
    # It had stood still for almost all of its time when it was killed.
    job.stand_still()
    job.run(25)
    job.ranks[2].absent = True
    job.run(300)
    assert job.accused == [("dead_rank", 2)]


def test_an_outage_names_the_place(job: Job):
    job.ranks[3].phase, job.ranks[3].absent = "data", True
    job.store[3] = job.ranks[3].beat(job.now)
    job.run(60)
    (outage,) = job.begun
    assert (outage.rank, outage.host, outage.phase) == (3, "node-1", "data")
    assert outage.step == job.ranks[3].step
    assert outage.ended_s is None


@pytest.mark.parametrize("phase", ["checkpoint", "eval"])
def test_where_native_code_may_hold_the_lock_a_beat_may_be_late_for_two_minutes(
    job: Job, phase: str
):
    job.ranks[1].phase = phase
    job.run(5)
    job.ranks[1].absent = True
    job.run(115)
    job.assert_no_verdict()
    job.run(15)
    assert job.accused == [("dead_rank", 1)]


def test_before_the_first_step_a_beat_may_be_late_for_two_minutes():
    job = Job(2).run(10)
    job.ranks[1].absent = True
    job.run(115)
    job.assert_no_verdict()
    job.run(15)
    assert job.accused == [("dead_rank", 1)]


def test_a_rank_that_comes_back_ends_its_outage_and_a_second_one_is_new(job: Job):
    for _ in range(2):
        job.ranks[1].absent = True
        job.run(60)
        job.ranks[1].absent = False
        job.run(10)
    assert job.accused == [("dead_rank", 1), ("dead_rank", 1)]
    assert [(outage.rank, outage.ending) for outage in job.ended] == [(1, "recovered")] * 2
    assert job.ended[0].ended_s is not None
    assert job.ended[0].ended_s > job.ended[0].began_s
    assert job.counts == {"alive": 4}


def test_a_replaced_rank_is_a_return_and_no_outage(job: Job):
    job.run(500)
    job.ranks[1] = Player(1, 900, state="running", timeout_s=30.0, moved_at=job.now)
    job.run(60)
    job.assert_no_verdict()
    assert job.counts == {"alive": 4}


def test_a_replacement_whose_count_of_beats_is_the_same_is_seen(job: Job):
    job.ranks[1].absent = True
    job.run(60)
    old = job.ranks[1]
    job.ranks[1] = Player(1, 900, beats=old.beats - 1, state="running", moved_at=job.now)
    job.run(5)
    assert [outage.ending for outage in job.ended] == ["recovered"]


# Known to be gone


def test_a_process_known_to_be_gone_is_dead_at_once(job: Job):
    job.ranks[2].absent = True
    job.board.confirm_gone(job.store[2])
    assert job.look().counts["dead"] == 1
    job.stand_still()
    job.run(100)
    assert job.accused == [("dead_rank", 2)]


def test_a_goodbye_read_with_the_proof_wins(job: Job):
    job.ranks[2].state, job.ranks[2].absent = "finished", True
    job.store[2] = job.ranks[2].beat(job.now)
    job.board.confirm_gone(job.store[2])
    job.run(60)
    job.assert_no_verdict()


def test_a_process_that_beats_after_the_proof_is_alive(job: Job):
    job.board.confirm_gone(job.store[2])
    job.run(5)
    job.assert_no_verdict()


def test_a_proof_against_the_process_before_does_not_touch_its_successor(job: Job):
    old = job.store[2]
    job.ranks[2] = Player(2, 900, state="running", timeout_s=30.0, moved_at=job.now)
    job.run(5)
    job.board.confirm_gone(old)
    job.look()
    job.assert_no_verdict()


def test_silent_ranks_are_named_for_a_probe_until_they_are_dead(job: Job):
    job.ranks[2].absent = True
    job.run(10)
    assert not job.board.overdue()
    job.run(5)
    assert [beat.rank for beat in job.board.overdue()] == [2]
    job.run(60)
    assert not job.board.overdue()


# Stuck


def test_the_rank_behind_is_to_blame_when_all_stand_still(job: Job):
    job.stand_still()
    job.ranks[3].step -= 1
    job.run(300)
    assert job.accused == [("stuck_rank", 3)]
    assert job.suspects == [(3, "stuck")]
    assert job.counts == {"stuck": 4}


def test_the_rank_with_fewer_marks_in_the_step_is_to_blame(job: Job):
    job.stand_still()
    for rank in job.ranks:
        rank.marks = 3
    job.ranks[1].marks, job.ranks[1].phase = 1, "data"
    job.run(300)
    assert job.accused == [("stuck_rank", 1)]
    assert job.begun[0].phase == "data"


def test_of_two_ranks_the_one_behind_is_to_blame():
    job = Job(2).train()
    job.stand_still()
    job.ranks[0].step -= 1
    job.run(60)
    assert job.accused == [("stuck_rank", 0)]


def test_without_marks_the_one_in_another_place_is_to_blame(job: Job):
    job.stand_still()
    for rank in job.ranks:
        rank.where = "train.py:80 all_reduce"
    job.ranks[2].where = "train.py:12 load_batch"
    job.run(300)
    assert job.accused == [("stuck_rank", 2)]
    assert job.begun[0].where == "train.py:12 load_batch"


def test_the_place_decides_among_a_majority_that_is_behind(job: Job):
    # One rank ran ahead; of those behind, one is elsewhere.
    job.stand_still()
    job.ranks[0].step += 1
    for rank, where in zip(job.ranks, ("a", "a", "a", "b"), strict=True):
        rank.where = where
    job.run(60)
    assert job.accused == [("stuck_rank", 3)]


def test_a_rank_that_does_not_say_where_it_is_is_not_accused_for_that(job: Job):
    job.stand_still()
    for rank in job.ranks[:3]:
        rank.where = "train.py:80 all_reduce"
    job.run(300)
    assert job.accused == [("stuck_rank", None)]


def test_when_nothing_tells_all_are_suspects_and_one_outage_names_nobody(job: Job):
    job.stand_still()
    for rank in job.ranks:
        rank.where = "train.py:80 all_reduce"
    job.run(300)
    assert job.accused == [("stuck_rank", None)]
    assert (job.begun[0].where, job.begun[0].host) == ("train.py:80 all_reduce", "")
    assert job.suspects == [(rank, "stuck") for rank in range(4)]
    for rank in job.ranks:
        rank.standing = False
    job.run(5)
    assert [(outage.rank, outage.ending) for outage in job.ended] == [(None, "recovered")]
    assert job.suspects == []


def test_half_of_the_ranks_in_another_place_is_no_minority(job: Job):
    job.stand_still()
    for rank, where in zip(job.ranks, ("a", "b", "a", "b"), strict=True):
        rank.where = where
    job.run(60)
    assert job.accused == [("stuck_rank", None)]


def test_one_rank_alone_is_to_blame_itself():
    job = Job(1).train()
    job.stand_still()
    job.run(60)
    assert job.accused == [("stuck_rank", 0)]


def test_a_stuck_rank_is_found_within_two_intervals_of_its_timeout(job: Job):
    job.stand_still()
    job.ranks[1].step -= 1
    stopped_at = job.ranks[1].moved_at
    job.run(120, until=lambda standing: bool(standing.begun))
    assert 30 < job.now - stopped_at <= 40


def test_a_few_that_stand_still_while_the_others_go_on_are_accused_alone(job: Job):
    job.ranks[1].standing = job.ranks[2].standing = True
    job.run(300)
    assert job.accused == [("stuck_rank", 1), ("stuck_rank", 2)]
    assert job.counts == {"alive": 2, "stuck": 2}


def test_a_stuck_rank_that_moves_again_has_recovered_and_a_second_time_is_new(job: Job):
    for _ in range(2):
        job.ranks[1].standing = True
        job.run(100)
        job.ranks[1].standing = False
        job.run(10)
    assert job.accused == [("stuck_rank", 1)] * 2
    assert [outage.ending for outage in job.ended] == ["recovered"] * 2


def test_a_stuck_rank_that_is_killed_dies_and_stays_one_incident_each(job: Job):
    job.stand_still()
    job.ranks[1].step -= 1
    job.run(100)
    job.ranks[1].absent = True
    job.run(100)
    assert job.accused == [("stuck_rank", 1), ("dead_rank", 1)]
    assert [(outage.kind, outage.ending) for outage in job.ended] == [("stuck_rank", "died")]
    assert job.suspects == [(1, "dead")]


def test_the_others_are_not_accused_when_the_one_to_blame_was_found_before(job: Job):
    job.stand_still()
    job.ranks[1].step -= 1
    job.run(60)
    job.ranks[3].where = "somewhere.py:1 else"
    job.run(600)
    assert job.accused == [("stuck_rank", 1)]


def test_a_rank_that_stops_long_after_another_died_is_accused(job: Job):
    # Fault-tolerant training goes on without the dead one.
    job.ranks[1].absent = True
    job.run(600)
    job.stand_still()
    job.ranks[3].step -= 1
    job.run(100)
    assert job.accused == [("dead_rank", 1), ("stuck_rank", 3)]


# Goodbyes


@pytest.mark.parametrize("state", ["finished", "terminated", "interrupted", "failed"])
def test_a_rank_that_said_goodbye_is_never_dead(job: Job, state: str):
    job.ranks[1].state = state
    job.run(5)
    job.ranks[1].absent = True
    job.run(3600)
    assert job.begun == []
    assert job.counts == {"alive": 3, "finished": 1}
    assert job.standing.goodbyes == {state: 1}
    assert job.suspects == ([(1, "failed")] if state == "failed" else [])


@pytest.mark.parametrize("state", ["failed", "terminated", "interrupted"])
def test_the_others_wait_for_one_that_left_in_the_middle_of_the_work(job: Job, state: str):
    job.stand_still()
    job.ranks[1].state = state
    job.run(5)
    job.ranks[1].absent = True
    job.run(300)
    assert job.begun == []
    assert job.suspects == [(1, state)]
    assert job.counts == {"stuck": 3, "finished": 1}


def test_a_rank_that_hangs_after_another_finished_is_accused():
    job = Job(2).train()
    job.ranks[1].state = "finished"
    job.run(5)
    job.ranks[1].absent = True
    job.ranks[0].standing = True
    job.run(60)
    assert job.accused == [("stuck_rank", 0)]


def test_a_goodbye_ends_an_outage_without_recovery(job: Job):
    job.ranks[1].standing = True
    job.run(100)
    job.ranks[1].state = "terminated"
    job.run(5)
    assert [(outage.rank, outage.ending) for outage in job.ended] == [(1, "goodbye")]


def test_a_rank_that_starts_again_after_its_goodbye_is_alive(job: Job):
    job.ranks[1].state = "failed"
    job.run(5)
    job.ranks[1] = Player(1, 900, state="running", timeout_s=30.0, moved_at=job.now)
    job.run(30)
    assert job.counts == {"alive": 4}


# Never came


def test_a_rank_that_never_came_is_a_suspect_once_the_startup_timeout_has_passed():
    job = Job(4)
    job.ranks[2].absent = True
    job.run(595)
    job.assert_no_verdict()
    assert job.counts == {"alive": 3, "missing": 1}
    job.run(600)
    assert job.suspects == [(2, "missing")]
    assert job.never_came == [2]
    assert job.begun == []  # the others wait for it in the rendezvous
    assert job.counts == {"stuck": 3, "missing": 1}


def test_a_rank_that_came_late_is_no_suspect_any_more_nor_is_the_one_that_waited():
    job = Job(2)
    job.ranks[1].absent = True
    job.run(700)
    job.ranks[1].absent, job.ranks[1].moved_at = False, job.now
    job.run(300)  # compilation
    assert (job.begun, job.suspects) == ([], [])
    job.train()
    job.assert_no_verdict()


def test_a_rank_that_has_done_a_step_does_not_wait_for_one_that_never_came(job: Job):
    partial = Job(5)
    partial.ranks[4].absent = True
    partial.train()
    partial.stand_still()
    partial.ranks[1].step -= 1
    partial.run(100)
    assert partial.accused == [("stuck_rank", 1)]


# Innocent


def test_a_checkpoint_pause_of_ten_minutes(job: Job):
    job.stand_still()
    for rank in job.ranks:
        rank.phase, rank.timeout_s = "checkpoint", 1800.0
    job.run(600)
    job.assert_no_verdict()


def test_ranks_that_wait_while_one_writes_the_checkpoint(job: Job):
    job.stand_still()
    job.ranks[0].phase, job.ranks[0].timeout_s = "checkpoint", 1800.0
    job.run(1700)
    assert (job.begun, job.suspects) == ([], [])
    job.run(300)
    assert len(job.begun) == 1  # the checkpoint's own time has run out


def test_ranks_that_wait_for_a_checkpoint_of_another_count_as_alive(job: Job):
    job.ranks[0].phase, job.ranks[0].timeout_s = "checkpoint", 1800.0
    job.stand_still()
    job.run(600)
    assert job.counts == {"alive": 4}
    job.run(1800)
    assert job.counts == {"stuck": 4}


def test_ranks_that_wait_while_one_makes_progress_in_an_evaluation(job: Job):
    job.stand_still()
    job.ranks[0].standing = False
    job.ranks[0].phase, job.ranks[0].timeout_s = "eval", 1800.0
    job.run(600)
    assert (job.begun, job.suspects) == ([], [])


def pause_for_a_checkpoint_of_rank_0(job: Job) -> None:
    job.stand_still()
    job.ranks[0].phase, job.ranks[0].timeout_s = "checkpoint", 1800.0
    job.run(100)
    job.ranks[0].phase, job.ranks[0].timeout_s = "", 30.0
    for rank in job.ranks:
        rank.standing = rank.rank == 1


def test_a_rank_that_goes_on_a_little_later_after_a_checkpoint_of_another(job: Job):
    pause_for_a_checkpoint_of_rank_0(job)
    job.run(10)
    job.ranks[1].standing = False
    job.run(100)
    assert (job.begun, job.suspects) == ([], [])


def test_a_rank_that_does_not_go_on_after_a_checkpoint_of_another(job: Job):
    pause_for_a_checkpoint_of_rank_0(job)
    job.run(50)
    assert job.accused == [("stuck_rank", 1)]


def test_native_code_that_holds_the_lock_for_12_s(job: Job):
    for _ in range(20):
        job.ranks[1].absent = True
        job.run(15)
        job.ranks[1].absent = False
        job.run(5)
    job.assert_no_verdict()


def test_a_startup_of_nine_minutes():
    job = Job(4).run(540)
    job.train()
    job.assert_no_verdict()


def test_an_attempt_of_fewer_ranks(job: Job):
    smaller = RankBoard(2, now=job.now)
    smaller.observe(job.store.values(), job.now)
    standing = smaller.judge(job.now)
    assert standing.counts["alive"] == standing.world_size == 2


def test_a_store_that_is_away_for_ten_minutes(job: Job):
    job.connected = False
    job.run(600)
    job.assert_no_verdict()
    assert job.counts == {"alive": 4}
    # The others find it again up to their longest backoff later than rank 0.
    job.connected = True
    for rank in job.ranks:
        rank.absent = True
    job.run(25)
    job.assert_no_verdict()
    for rank in job.ranks:
        rank.absent = False
    job.run(60)
    job.assert_no_verdict()


def test_a_silence_from_before_the_stores_absence_begins_anew(job: Job):
    job.ranks[3].absent = True
    job.run(25)
    job.connected = False
    job.run(60)
    job.connected = True
    job.run(25)
    job.assert_no_verdict()
    job.run(15)
    assert job.accused == [("dead_rank", 3)]


def test_a_rank_that_did_not_survive_the_stores_absence_is_dead(job: Job):
    job.connected = False
    job.run(60)
    job.connected = True
    job.ranks[3].absent = True
    job.run(40)
    assert job.accused == [("dead_rank", 3)]


def test_a_dead_rank_stays_dead_while_the_store_is_away(job: Job):
    job.ranks[3].absent = True
    job.run(60)
    job.connected = False
    job.run(60)
    job.connected = True
    job.run(10)
    assert job.accused == [("dead_rank", 3)]
    assert job.ended == []


def test_rank_0_suspended_with_its_whole_machine(job: Job):
    job.now += 3600
    for rank in job.ranks:
        rank.moved_at = job.now
    job.look()  # nobody had the time to beat
    job.assert_no_verdict()
    job.run(60)
    job.assert_no_verdict()


def test_a_rank_0_that_never_looks_in_time_still_finds_a_dead_rank(job: Job):
    job.ranks[3].absent = True
    for _ in range(5):
        job.now += 60
        job.run(5)
    assert job.accused == [("dead_rank", 3)]


def test_a_silent_rank_keeps_those_that_stopped_with_it_from_being_accused(job: Job):
    # Killed in a checkpoint: for two minutes nobody knows whether it lives.
    job.ranks[3].phase = "checkpoint"
    job.run(5)
    job.stand_still()
    job.ranks[3].absent = True
    job.run(110)
    assert (job.begun, job.suspects) == ([], [])
    job.run(60)
    assert job.accused == [("dead_rank", 3)]


def test_ranks_that_wait_for_a_checkpoint_that_began_after_they_stopped(job: Job):
    job.ranks[1].standing = True
    job.run(10)
    job.stand_still()
    job.ranks[0].phase, job.ranks[0].timeout_s = "checkpoint", 1800.0
    for rank in job.ranks[2:]:
        rank.timeout_s = 1800.0
    job.run(600)
    assert (job.begun, job.suspects) == ([], [])


def test_nobody_is_accused_while_it_is_open_whom_some_wait_for(job: Job):
    # Rank 0's time runs out before rank 3 falls silent, the others' after that.
    job.stand_still()
    for rank in job.ranks[1:]:
        rank.timeout_s = 60.0
    job.run(45)
    job.ranks[3].absent = True
    job.run(300)
    assert job.accused == [("dead_rank", 3)]


def test_a_silent_rank_is_not_accused_of_standing_still(job: Job):
    job.stand_still()
    job.ranks[0].phase, job.ranks[0].timeout_s = "checkpoint", 1800.0
    job.run(60)
    job.ranks[1].absent = True
    job.run(15)
    job.ranks[0].state = "finished"
    job.run(100)
    assert job.accused == [("dead_rank", 1)]


def test_an_earlier_standstill_does_not_count_for_a_later_one(job: Job):
    job.stand_still()
    job.run(60)
    for rank in job.ranks:
        rank.standing = False
    job.ranks[3].phase = "checkpoint"
    job.run(60)
    job.begun.clear()
    job.stand_still()
    job.ranks[3].absent = True
    job.run(110)
    assert job.begun == []


def test_a_rank_that_falls_silent_later_does_not_hide_a_stuck_one(job: Job):
    # The others go on, so rank 1 is to blame; its neighbour falls silent now and again.
    job.ranks[1].standing = True
    job.run(30)
    job.ranks[2].absent = True
    job.run(20)
    assert job.accused == [("stuck_rank", 1)]


# What a page shows


def test_rows_show_each_rank(job: Job):
    job.ranks[2].absent = True
    job.run(60)
    (row,) = job.standing.rows("dead")
    assert (row.rank, row.status, row.host, row.address) == (2, "dead", "node-1", "node-1:19400")
    assert row.silent_s == 60
    assert row.still_s == pytest.approx(60.5)
    assert [row.rank for row in job.standing.rows()] == [0, 1, 2, 3]


def test_the_row_of_a_rank_that_never_came_is_empty():
    row = Job(2).look().row(1)
    assert (row.status, row.state, row.host, row.step) == ("missing", "", "", -1)


def test_at_most_64_suspects_are_listed_and_all_are_counted():
    job = Job(100).train()
    for rank in job.ranks[:80]:
        rank.absent = True
    job.run(60)
    assert len(job.standing.suspects) == MAX_SUSPECTS
    assert job.standing.n_suspects == 80
    assert job.counts == {"dead": 80, "alive": 20}


def test_counts_sum_up_to_the_world_size(job: Job):
    job.ranks[1].absent = True
    job.ranks[2].state = "finished"
    job.run(60)
    assert sum(job.standing.counts.values()) == 4
    assert sum(job.standing.goodbyes.values()) == job.standing.counts["finished"]


# Failures that follow from another one


def test_ranks_whose_collectives_fail_when_another_dies_are_no_suspects(job: Job):
    job.ranks[2].absent = True
    for rank in (0, 1, 3):
        job.ranks[rank].state = "failed"
    job.run(60)
    assert job.suspects == [(2, "dead")]
    assert job.counts == {"dead": 1, "finished": 3}


def test_ranks_that_fail_after_the_first_one_are_no_suspects(job: Job):
    job.ranks[2].state = "failed"
    job.run(10)
    for rank in (0, 1, 3):
        job.ranks[rank].state = "failed"
    job.run(10)
    assert job.suspects == [(2, "failed")]


def test_a_rank_that_failed_long_before_another_died_stays_a_suspect(job: Job):
    job.ranks[1].state = "failed"
    job.run(30)
    job.ranks[2].absent = True
    job.run(60)
    assert job.suspects == [(2, "dead"), (1, "failed")]
