"""What the page at `/` says in each state of a run."""

from __future__ import annotations

import dataclasses
import math
from itertools import cycle, pairwise

import pytest

from health_exporter.export.page import status_page
from health_exporter.export.page_view import PageView
from health_exporter.snapshot import Snapshot
from tests.unit.export.page_scene import Scene, headline, parsed, problems, words


def level(html: str) -> str:
    section = parsed(html).find(".//section[@aria-labelledby='verdict']")
    assert section is not None
    return section.attrib["class"].removeprefix("verdict ")


def tiles(html: str) -> dict[str, str]:
    found = parsed(html).findall(".//dl/div")
    return {words(tile.find("dt")): words(tile.find("dd")) for tile in found}


def tables(html: str) -> list[list[list[str]]]:
    return [
        [[words(cell) for cell in row] for row in table.iter("tr")]
        for table in parsed(html).iter("table")
    ]


def test_a_healthy_run():
    html = Scene(8).train(range(300)).beat().html()

    assert headline(html) == "Healthy: running at step 299"
    assert level(html) == "good"
    shown = tiles(html)
    assert shown["step"] == "299"
    assert shown["ranks alive"] == "8 of 8"
    assert float(shown["loss"].split()[0]) == pytest.approx(3.34, abs=0.15)
    assert shown["MFU"].endswith("%")


def test_a_run_before_its_first_step():
    html = Scene().html()

    assert headline(html).startswith("Starting: no step yet")
    assert level(html) == "info"
    assert tiles(html)["step"] == "none yet"


def test_a_run_whose_ranks_have_not_all_come():
    html = Scene(8).beat(10, absent=[5, 6]).html()

    assert headline(html) == "Starting: 6 of 8 ranks are here"
    assert "missing: 5, 6" in words(parsed(html).find(".//ul[@class='who']"))


def test_a_spike_that_passed_is_told_and_alarms_nobody():
    scene = Scene().train(range(200))
    scene.step(200, 30.0, 1.0)
    html = scene.train(range(201, 260)).html()

    assert level(html) == "good"
    assert "The loss jumped at step 200" in problems(html)[0]


def test_a_loss_that_is_no_number():
    scene = Scene().train(range(100))
    for step in range(100, 105):
        scene.step(step, math.nan, 1.0)
    html = scene.html()

    assert headline(html) == "Not healthy: the loss is NaN since step 100"
    assert level(html) == "bad"
    assert "5 steps so far" in problems(html)[0]
    assert tiles(html)["loss"] == "NaN not judged"


def test_a_loss_that_was_no_number_and_is_one_again():
    scene = Scene().train(range(100))
    scene.step(100, math.inf, 1.0)
    html = scene.train(range(101, 120)).html()

    assert level(html) == "warn"
    assert "NaN or infinite at step 100" in problems(html)[0]


def test_a_dead_rank_is_named_with_its_host_step_and_phase():
    html = Scene(8).train(range(100)).beat(60, silent=[3]).html()

    assert headline(html) == "Not healthy: rank 3 on node-0 is dead: its process is gone"
    assert "last step 99, in backward" in problems(html)[0]
    assert "(60 s ago)" in problems(html)[0]
    suspects = tables(html)[0]
    assert suspects[1] == ["3", "dead", "node-0, in backward", "99", "60 s"]


def test_a_host_that_is_gone_is_one_problem():
    html = Scene(32).train(range(100)).beat(60, silent=range(8, 16)).html()

    assert headline(html) == "Not healthy: 8 ranks on node-1 are dead: their processes are gone"
    assert "ranks 8 to 15" in problems(html)[0]


def test_a_stuck_rank_is_named_with_its_place():
    html = Scene(4).train(range(100)).beat(120, still=[2]).html()

    assert headline(html).startswith("Not healthy: rank 2 on node-0 is stuck")
    assert "at train.py:42 load_batch" in problems(html)[0]


def test_ranks_that_all_stand_still():
    html = Scene(4).train(range(100)).beat(120, still=range(4), where="ddp.py:9 wait").html()

    assert headline(html) == "Not healthy: all 4 ranks stand still"
    assert "most are at ddp.py:9 wait" in problems(html)[0]


def test_a_single_rank_that_stands_still():
    scene = Scene().train(range(100))
    scene.still_s = scene.stuck_s = 90.0
    html = scene.html()

    assert headline(html) == "Not healthy: rank 0 on node-0 stands still in forward"
    assert "90 s ago" in problems(html)[0]


def test_a_run_that_finished_is_not_loaded_again():
    html = Scene(2).train(range(100)).beat().end("finished").html()

    assert headline(html) == "Finished at step 99"
    assert level(html) == "good"
    assert 'http-equiv="refresh"' not in html


def test_a_run_that_was_stopped():
    html = Scene().train(range(100)).end("terminated").html()

    assert headline(html) == "Stopped by SIGTERM at step 99"
    assert level(html) == "info"


def test_a_run_that_failed_tells_its_exception():
    html = Scene().train(range(100)).end("failed", "ValueError", "<script>alert(1)</script>").html()

    assert headline(html) == "Not healthy: the run failed"
    assert "ValueError: <script>alert(1)</script>; last step 99" in problems(html)[0]
    assert "<script" not in html


def test_a_resume_that_lost_the_baseline():
    scene = Scene().train(range(300))
    scene.step(300, 25.0, 1.0, restart=True)
    html = scene.train(range(301, 305)).html()

    assert headline(html) == "Not healthy: a resume broke the loss curve at step 300"
    assert "check that everything was restored" in problems(html)[0]


def test_a_loss_without_a_baseline_yet():
    assert "no baseline yet" in tiles(Scene().train(range(3)).html())["loss"]


def test_a_store_that_is_lost_and_refused_steps_are_to_be_looked_at():
    scene = Scene(2).train(range(100)).beat()
    scene.store_connected = False
    scene.rejected = {"type": 3, "value": 0}
    html = scene.html()

    assert level(html) == "warn"
    assert "dead ranks are not seen" in problems(html)[0]
    assert "3 steps could not be judged" in problems(html)[1]


def other_rank(scene: Scene, **changes: object) -> PageView:
    view = scene.view()
    snapshot = Snapshot(scene.run, 3, view.snapshot.own, None)
    fields = {"history": None, "standing": None, "happenings": (), "rank0": "node-0:19400"}
    return dataclasses.replace(view, snapshot=snapshot, **(fields | changes))  # type: ignore[arg-type]


def test_another_rank_tells_of_itself_and_where_rank_0_is():
    html = status_page(other_rank(Scene(8).train(range(100))))

    assert headline(html) == "This rank goes on at step 99"
    shown = tiles(html)
    assert (shown["state"], shown["step"], shown["phase"]) == ("running", "99", "forward")
    assert shown["last progress"] == "just now stuck after 30 s"
    link = parsed(html).find(".//section/p/a")
    assert link is not None
    assert link.attrib["href"] == "//node-0:19400/"


def test_another_rank_that_is_stuck():
    html = status_page(other_rank(Scene(8).train(range(100)), stuck_s=45.0, still_s=45.0))

    assert headline(html) == "Not healthy: rank 3 on node-0 stands still in forward"


def test_it_is_loaded_again_unless_it_is_asked_not_to_be():
    view = Scene().train(range(10)).view()

    assert 'http-equiv="refresh" content="10"' in status_page(view)
    assert 'http-equiv="refresh"' not in status_page(view, "refresh=0")


def test_events_are_listed_newest_first_and_the_same_trouble_once():
    scene = Scene(8).train(range(100))
    for step in range(100, 150):
        scene.step(step, math.nan, 1.0)
    html = scene.beat(60, silent=[3]).html()

    rows = [row[1:] for row in tables(html)[1][1:]]
    assert rows[0][0] == "149"
    assert "rank 3 on node-0" in rows[0][1]
    assert rows[1] == ["100 to 149", "the loss is NaN or infinite (50 times)"]
    assert rows[2][1].startswith("start on node-0")


@pytest.mark.parametrize("n_ranks", [2, 64, 1_000, 16_384, 100_000])
def test_its_size_is_bounded_at_any_number_of_ranks(n_ranks: int):
    """The worst that a grid can show: no two neighbours of the same status."""
    scene = Scene(8).train(range(700)).beat(60, silent=[3])
    known = scene.standing
    assert known is not None
    ranks = cycle(known._ranks[2:4])
    scene.standing = dataclasses.replace(
        known,
        world_size=n_ranks,
        counts={**known.counts, "alive": n_ranks // 2, "dead": n_ranks // 2},
        suspects=(),
        _ranks=tuple(next(ranks) for _ in range(n_ranks)),
    )
    scene.world_size = n_ranks

    assert len(scene.html()) < 300_000


def test_its_size_is_bounded_at_any_number_of_steps():
    scene = Scene(2).beat()
    for first in (0, 4_000, 8_000):
        assert len(scene.train(range(first, first + 4_000)).html()) < 100_000


def accessible(html: str) -> None:
    page = parsed(html)
    assert page.attrib["lang"] == "en"
    assert [len(page.findall(f"body/{name}")) for name in ("header", "main", "footer")] == [1] * 3
    levels = [int(e.tag[1]) for e in page.iter() if e.tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [e.attrib["id"] for e in page.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    for element in page.iter():
        for named in element.attrib.get("aria-labelledby", "").split():
            assert named in ids
        if element.tag == "th":
            assert element.attrib["scope"] in ("row", "col")
        if element.tag == "svg":
            assert element.attrib.get("aria-hidden") or element.attrib["role"] == "img"


def test_landmarks_headings_and_names_are_there():
    accessible(Scene(8).train(range(700)).beat(60, silent=[3]).html())
    accessible(Scene().html())


def test_nothing_is_loaded_from_elsewhere():
    page = parsed(Scene(8).train(range(700)).beat(60, silent=[3]).html())

    assert not list(page.iter("script"))
    for element in page.iter():
        assert "src" not in element.attrib
        assert "style" not in element.attrib
        assert not any(name.startswith("on") for name in element.attrib)
        assert element.attrib.get("href", "/").startswith(("/", "data:"))
