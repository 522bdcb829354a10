from __future__ import annotations

import dataclasses
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from health_exporter import HealthExporter
from health_exporter.core.beat import Beat
from health_exporter.core.standing import Standing
from health_exporter.core.verdict import RankBoard
from health_exporter.export.page import status_page
from health_exporter.runtime.target import (
    Target,
    join_address,
    rank0_address,
    render,
    standing_targets,
)

OWN = Target(address="gpu0:19400", run="llama", host="gpu0", rank=0, local_rank=0)
LINGER_S = 20.0


def beat(rank: int, **changes: Any) -> Beat:
    said = {
        "host": f"gpu{rank}",
        "address": f"gpu{rank}:19400",
        "pid": 100 + rank,
        "beats": 1,
        "progress": 1,
        "step": 1,
        "phase": "",
        "state": "running",
        "still_s": 0.0,
        "timeout_s": 60.0,
    }
    return Beat(rank=rank, **{**said, **changes})


def standing(beats: Sequence[Beat], *, world_size: int = 4, silent_s: float = 1.0) -> Standing:
    """How the ranks stand `silent_s` after their last beats."""
    board = RankBoard(world_size, beat_timeout_s=30.0, beat_interval_s=5.0, now=0.0)
    board.observe(beats, 0.0)
    now = 0.0
    while now < silent_s:  # rank 0 looks every interval
        now = min(now + 5.0, silent_s)
        board.observe((), now)
    return board.judge(now)


def ranks(beats: Sequence[Beat], *, silent_s: float = 1.0) -> list[int | None]:
    found = standing_targets(OWN, standing(beats, silent_s=silent_s), linger_s=LINGER_S)
    return [target.rank for target in found]


def test_every_rank_that_has_come_is_a_target_and_one_that_has_not_is_none() -> None:
    assert ranks([beat(0), beat(3), beat(1)]) == [0, 1, 3]


def test_a_rank_without_an_endpoint_is_no_target() -> None:
    assert ranks([beat(0), beat(1, address=""), beat(2)]) == [0, 2]


def test_a_dead_rank_stays_so_that_it_is_missed() -> None:
    assert ranks([beat(1)], silent_s=600.0) == [0, 1]


@pytest.mark.parametrize("state", ["failed", "terminated", "interrupted"])
def test_a_rank_that_has_left_the_work_unfinished_stays(state: str) -> None:
    assert ranks([beat(1, state=state)], silent_s=600.0) == [0, 1]


def test_a_finished_rank_stays_for_its_last_scrape_and_goes_then() -> None:
    assert ranks([beat(1, state="finished")], silent_s=LINGER_S - 1) == [0, 1]
    assert ranks([beat(1, state="finished")], silent_s=LINGER_S + 1) == [0]


def test_a_rank_that_has_only_registered_is_a_target_until_it_is_heard_of() -> None:
    registered = [
        Target(address=f"gpu{rank}:9", run="llama", host=f"gpu{rank}", rank=rank, local_rank=0)
        for rank in range(4)
    ]
    stand = standing([beat(0), beat(1), beat(2, address="", state="finished")])

    for known, expected in (
        (None, ["gpu0:19400", "gpu1:9", "gpu2:9", "gpu3:9"]),
        (stand, ["gpu0:19400", "gpu1:19400", "gpu3:9"]),
    ):
        found = standing_targets(OWN, known, linger_s=LINGER_S, registered=registered)
        assert [target.address for target in found] == expected


def test_a_registered_address_at_which_another_rank_is_now_is_no_second_target() -> None:
    registered = [Target(address="gpu1:19400", run="llama", host="gpu1", rank=3, local_rank=0)]
    found = standing_targets(
        OWN, standing([beat(0), beat(1)]), linger_s=LINGER_S, registered=registered
    )

    assert [target.rank for target in found] == [0, 1]


def test_before_the_first_judgement_rank_0_is_the_only_target() -> None:
    assert list(standing_targets(OWN, None, linger_s=LINGER_S)) == [OWN]


def test_rank_0_without_an_endpoint_is_no_target() -> None:
    own = Target(address="", run="llama", host="gpu0", rank=0)

    assert list(standing_targets(own, standing([beat(0, address="")]), linger_s=0)) == []


def test_a_target_is_what_prometheus_reads() -> None:
    text = render(standing_targets(OWN, standing([beat(0), beat(1)]), linger_s=LINGER_S))

    assert json.loads(text) == [
        {
            "targets": ["gpu0:19400"],
            "labels": {
                "__meta_training_health_run": "llama",
                "__meta_training_health_rank": "0",
                "__meta_training_health_local_rank": "0",
                "__meta_training_health_host": "gpu0",
            },
        },
        {
            "targets": ["gpu1:19400"],
            "labels": {
                "__meta_training_health_run": "llama",
                "__meta_training_health_rank": "1",
                "__meta_training_health_host": "gpu1",
            },
        },
    ]


def test_no_target_is_an_empty_list() -> None:
    assert json.loads(render([])) == []


@pytest.mark.parametrize("text", ['a "b"', "Grüße", "\n", "\\", "\udcff"])
def test_any_name_survives(text: str) -> None:
    [target] = json.loads(render([Target(address="h:1", run=text, host=text)]))

    assert target["labels"]["__meta_training_health_run"] == text
    assert target["labels"]["__meta_training_health_host"] == text


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("gpu1", "gpu1:80"),
        ("10.0.0.1", "10.0.0.1:80"),
        ("::1", "[::1]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
    ],
)
def test_an_ipv6_address_gets_brackets(host: str, address: str) -> None:
    assert join_address(host, 80) == address


def get_targets(url: str | None) -> tuple[str, Any]:
    assert url is not None
    with urllib.request.urlopen(url.replace("/metrics", "/targets"), timeout=10) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], json.load(answer)


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_rank_0_serves_itself_where_it_is_alone(tmp_path: Path, address: str, host: str) -> None:
    with HealthExporter(
        run="alone", address=address, port=0, linger_s=0, receipt_dir=tmp_path
    ) as exporter:
        kind, [target] = get_targets(exporter.url)
        port = exporter.port

    assert kind == "application/json"
    assert target["targets"] == [f"{host}:{port}"]
    assert target["labels"]["__meta_training_health_run"] == "alone"


def test_other_ranks_serve_no_list(tmp_path: Path) -> None:
    with (
        HealthExporter(
            run="two", rank=1, world_size=2, port=0, linger_s=0, receipt_dir=tmp_path
        ) as exporter,
        pytest.raises(urllib.error.HTTPError, match="404") as refused,
    ):
        get_targets(exporter.url)
    refused.value.close()


@pytest.mark.parametrize(
    ("master", "link"),
    [("gpu0", "//gpu0:19400/"), ("fd00::7", "//[fd00::7]:19400/"), ("", "")],
)
def test_the_page_of_another_rank_leads_to_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, link: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    with HealthExporter(
        run="two", rank=1, world_size=2, port=None, linger_s=0, receipt_dir=tmp_path
    ) as exporter:
        settings = dataclasses.replace(exporter.settings, port=19400)
        view = exporter.page_view()

    assert view.rank0 == ""  # without an endpoint nobody has a page
    page = status_page(dataclasses.replace(view, rank0=rank0_address(settings, os.environ)))
    assert (f'href="{link}"' in page) if link else ("rank 0 knows." in page)
