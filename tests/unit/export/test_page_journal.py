"""Events for the page: bounded, and trouble that goes on is one line."""

from __future__ import annotations

from health_exporter.export.journal import Journal


def anomaly(kind: str, step: int, **fields: object) -> dict[str, object]:
    return {"kind": kind, "step": step, **fields}


def test_trouble_of_several_kinds_at_every_step_does_not_hide_what_came_before():
    journal = Journal()
    journal.add(0.0, "anomaly", anomaly("dead_rank", 9, rank="3"))
    for step in range(10, 5_000):
        journal.add(step / 10, "anomaly", anomaly("nan_inf_loss", step))
        journal.add(step / 10, "anomaly", anomaly("nan_inf_grad", step))

    kinds = {entry.kind: entry for entry in journal.entries}
    assert len(journal.entries) == 3
    assert kinds["dead_rank"].ranks == ("3",)
    lasting = kinds["nan_inf_loss"]
    assert (lasting.first_step, lasting.last_step, lasting.count) == (10, 4_999, 4_990)


def test_the_same_kind_much_later_is_another_line():
    journal = Journal()
    journal.add(0.0, "anomaly", anomaly("loss_spike", 10))
    journal.add(3_600.0, "anomaly", anomaly("loss_spike", 9_000))

    assert [entry.first_step for entry in journal.entries] == [10, 9_000]


def test_ranks_of_one_outage_are_named_once_and_not_all():
    journal = Journal()
    for rank in [*range(100), 5]:
        journal.add(1.0, "anomaly", anomaly("dead_rank", 7, rank=str(rank)))

    (entry,) = journal.entries
    assert entry.count == 101
    assert entry.ranks == ("0", "1", "2", "3", "4", "5", "6", "7")


def test_it_is_bounded():
    journal = Journal()
    for n in range(1_000):
        journal.add(1_000.0 * n, "restart", {"step": 100 * n})

    assert len(journal.entries) == 64
    assert journal.entries[-1].first_step == 99_900
