"""The push to real servers, series by series and value by value beside the scrape."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from health_exporter import HealthExporter
from health_exporter.core.standing import Suspect
from health_exporter.export.otlp import MessageMaker, make_resource
from health_exporter.export.otlp_sender import make_sender
from health_exporter.export.prometheus import MetricsPage
from health_exporter.snapshot import Snapshot
from tests.stack.otlp_backend import BACKENDS, Backend, as_number, difference
from tests.stack.test_otlp import scrape, train
from tests.stack.trainer_script import poll
from tests.unit.export.otlp_sample import full_snapshot, full_step
from tests.unit.export.otlp_translation import Series

# What is not the same twice: only that it is there is compared.
MOVING = ("process_", "training_health_goodput", "training_health_receipt_time")


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    start: Callable[[Path], AbstractContextManager[Backend]] = request.param
    with start(tmp_path_factory.mktemp("backend")) as backend:
        yield backend


class Pusher:
    """Pushes snapshots as a rank does."""

    def __init__(self, backend: Backend, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.instance = f"{snapshot.run}/{snapshot.rank}"
        self._backend = backend
        resource = make_resource(snapshot.run, snapshot.rank, "gpu017", "1.2")
        self._messages = MessageMaker(lambda: self.snapshot, resource, version="1.2")
        self._sender = make_sender(backend.environ())

    def push(self) -> None:
        self._sender.send(self._messages.make())

    def assert_shown(self, expected: Mapping[Series, float]) -> None:
        assert_shown(self._backend, self.instance, lambda: expected)


def scraped(snapshot: Snapshot) -> dict[Series, float]:
    body, _ = MetricsPage(lambda: snapshot).render("text/plain")
    return {
        (sample.name, frozenset((n, v) for n, v in sample.labels.items() if v)): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def settled(series: Mapping[Series, float]) -> dict[Series, float]:
    return {as_number(s): 0.0 if s[0].startswith(MOVING) else v for s, v in series.items()}


def assert_shown(
    backend: Backend, instance: str, expected: Callable[[], Mapping[Series, float]]
) -> None:
    """Wait until it shows exactly that; else the differences are the error."""
    last = "nothing was compared"

    def is_shown() -> bool:
        nonlocal last
        shown = settled(backend.shown(instance))
        last = difference(settled(expected()), shown, backend.rel_tol)
        return not last

    try:
        poll(is_shown)
    except AssertionError:
        pytest.fail(last, pytrace=False)


@pytest.mark.parametrize("rank", [0, 3])
def test_every_metric_of_the_catalogue(backend: Backend, rank: int):
    pusher = Pusher(backend, full_snapshot(rank, run="catalogue"))
    pusher.push()
    pusher.assert_shown(scraped(pusher.snapshot))


def test_series_that_is_over_ends_and_the_others_do_not(backend: Backend):
    suspected = full_snapshot(run="suspects")
    assert suspected.whole is not None
    suspects = tuple(Suspect(rank, "gpu018", "dead") for rank in (3, 4, 5))
    suspected = suspected._replace(whole=suspected.whole._replace(suspects=suspects))
    pusher = Pusher(backend, suspected)
    pusher.push()
    pusher.assert_shown(scraped(suspected))
    assert suspected.whole is not None
    whole = suspected.whole._replace(suspects=suspects[1:2])
    pusher.snapshot = suspected._replace(whole=whole)
    time.sleep(0.01)  # the next sample is of another millisecond
    pusher.push()
    pusher.assert_shown(scraped(pusher.snapshot))


def test_loss_that_is_not_finite(backend: Backend):
    pusher = Pusher(backend, full_snapshot(run="not-finite"))
    for loss in (2.0, math.inf, math.nan):
        pusher.snapshot = full_snapshot(run="not-finite", step=full_step(loss=loss))
        time.sleep(0.01)
        pusher.push()
    expected = scraped(pusher.snapshot)
    if not backend.keeps_nan:  # it drops a NaN, and shows what was before
        (loss_series,) = (series for series in expected if series[0] == "training_health_loss")
        expected[loss_series] = math.inf
    pusher.assert_shown(expected)


def test_run_that_trains_and_ends(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, text in backend.environ().items():
        monkeypatch.setenv(name, text)
    with HealthExporter(
        run="live", port=0, address="127.0.0.1", receipt_dir=tmp_path, linger_s=0
    ) as exporter:
        train(exporter)
        assert exporter.port is not None
        port = exporter.port
        assert_shown(backend, "live/0", lambda: scrape(port))
        before = backend.shown("live/0")
    # Its last word stands: nothing says that its series are over, as for a target that is gone.
    now_1 = {("state", "finished"), ("status", "finished")}
    now_0 = {("state", "running"), ("status", "alive")}
    expected = {
        (name, labels): 1.0 if labels & now_1 else 0.0 if labels & now_0 else value
        for (name, labels), value in before.items()
    }
    assert_shown(backend, "live/0", lambda: expected)
