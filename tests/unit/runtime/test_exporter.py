"""The three lines of a trainer, and all that may be wrong with them."""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from health_exporter import HealthExporter, SettingsError, TrainingHealthMonitor
from health_exporter.errors import EndpointError
from tests.unit.export.raw_http import eventually, exchange, get
from tests.unit.runtime.conftest import MakeExporter
from tests.unit.runtime.recorded import loads

LOG = "health_exporter"


def scrape(exporter: HealthExporter) -> dict[str, float]:
    """Samples by their text."""
    assert exporter.port is not None
    text = exchange(exporter.port, get("/metrics")).body.decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def observe(exporter: HealthExporter, step: int, changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"step": step, "loss": 2.0, **changes}
    exporter.observe_step(**arguments)


def test_the_three_lines(tmp_path: Path):
    with HealthExporter(run="r", port=0, receipt_dir=tmp_path, linger_s=0) as exporter:
        for step in range(3):
            found = exporter.observe_step(step, 2.0, grad_norm=1.0, batch_size=8)
            assert found == []
        assert exporter.state == "running"
        seen = scrape(exporter)
        port = exporter.port

    assert seen['training_health_steps_total{run="r"}'] == 3
    assert seen['training_health_loss{run="r"}'] == 2.0
    assert exporter.state == "finished"
    assert exporter.receipt_path == tmp_path / "r" / "report.json"
    assert loads(exporter.receipt_path.read_text())["status"] == "finished"
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", port)) != 0


NUMBERS = [
    (2, 2.0),
    (2.5, 2.5),
    (np.float64(2.5), 2.5),
    (np.float32(2.5), 2.5),
    (np.float16(2.5), 2.5),
    (np.int64(2), 2.0),
    (np.array(2.5), 2.5),
    (Fraction(5, 2), 2.5),
    (torch.tensor(2.5), 2.5),
    (torch.tensor(2.5, dtype=torch.bfloat16), 2.5),
    (torch.tensor(2.5, requires_grad=True), 2.5),
    (torch.tensor(2.5, requires_grad=True) * 1, 2.5),
    (torch.tensor(2), 2.0),
    (np.float32("inf"), math.inf),
    (torch.tensor(math.nan), math.nan),
]


@pytest.mark.parametrize(("given", "number"), NUMBERS, ids=lambda value: repr(value)[:40])
def test_every_kind_of_number_is_taken(make: MakeExporter, given: Any, number: float):
    exporter = make(strict=True)
    exporter.observe_step(np.int64(7), given, grad_norm=given, step_time_s=np.float32(0.5))
    step: Any = torch.tensor(8)
    exporter.observe_step(step, given, grad_norm=given, batch_size=np.int32(4))

    record = exporter.monitor.records[-1]
    assert record.step == 8
    assert record.loss == pytest.approx(number, nan_ok=True)
    assert record.grad_norm == pytest.approx(number, nan_ok=True)
    assert type(record.loss) is float


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "step of text": ({"step": "1"}, "type"),
    "step of a float": ({"step": 1.0}, "type"),
    "step of a bool": ({"step": True}, "type"),
    "no step": ({"step": None}, "type"),
    "negative step": ({"step": -1}, "value"),
    "huge step": ({"step": 2**64}, "value"),
    "step that goes back": ({"step": 3}, "value"),
    "loss of text": ({"loss": "2.0"}, "type"),
    "no loss": ({"loss": None}, "type"),
    "loss of a bool": ({"loss": True}, "type"),
    "loss of a complex": ({"loss": 1j}, "type"),
    "loss of a decimal": ({"loss": Decimal("1.5")}, "type"),
    "loss of a list": ({"loss": [2.0]}, "type"),
    "loss of an array": ({"loss": np.ones(3)}, "type"),
    "loss of a tensor of one": ({"loss": torch.ones(1)}, "type"),
    "loss of a tensor of many": ({"loss": torch.ones(2, 2)}, "type"),
    "loss of a complex tensor": ({"loss": torch.tensor(1j)}, "type"),
    "loss of a tensor without data": ({"loss": torch.empty((), device="meta")}, "internal"),
    "huge loss": ({"loss": 10**400}, "value"),
    "grad norm of text": ({"grad_norm": "1"}, "type"),
    "negative grad norm": ({"grad_norm": -1.0}, "value"),
    "step time of zero": ({"step_time_s": 0.0}, "value"),
    "negative step time": ({"step_time_s": -1.0}, "value"),
    "step time that is none": ({"step_time_s": math.nan}, "value"),
    "step time of text": ({"step_time_s": "1"}, "type"),
    "batch of zero": ({"batch_size": 0}, "value"),
    "batch of a float": ({"batch_size": 8.0}, "type"),
    "restart of an int": ({"restart": 1}, "type"),
    "restart of text": ({"restart": "yes"}, "type"),
}


class Hostile:
    """Fails at whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(f"no {name}")


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_logged_counted_and_not_raised(
    make: MakeExporter, caplog: pytest.LogCaptureFixture, name: str
):
    changes, reason = BAD[name]
    exporter = make()
    exporter.observe_step(5, 2.0)
    arguments: dict[str, Any] = {"step": 6, "loss": 2.0, **changes}

    assert exporter.observe_step(**arguments) == []
    exporter.observe_step(7, 2.0)  # on an accelerator it is judged one step late
    exporter.observe_step(8, 2.0)

    assert [record.step for record in exporter.monitor.records] == [5, 7, 8]
    rejected = {
        each: scrape(exporter)[
            f'training_health_rejected_observations_total{{reason="{each}",run="r"}}'
        ]
        for each in ("type", "value", "closed", "internal")
    }
    assert rejected == {**dict.fromkeys(rejected, 0.0), reason: 1.0}
    (line,) = [r for r in caplog.records if r.name.startswith(LOG) and r.levelno >= logging.WARNING]
    assert "observation refused" in line.getMessage()
    if reason != "internal":
        assert next(iter(changes)) in line.getMessage()


@pytest.mark.parametrize(
    "name", [name for name, (_, reason) in BAD.items() if reason != "internal"]
)
def test_strict_raises(make: MakeExporter, name: str):
    changes, reason = BAD[name]
    exporter = make(strict=True)
    exporter.observe_step(5, 2.0)

    with pytest.raises(TypeError if reason == "type" else ValueError, match=next(iter(changes))):
        observe(exporter, 6, changes)


def test_a_hostile_object_does_not_reach_the_loop(make: MakeExporter):
    exporter = make()
    assert exporter.observe_step(1, Hostile()) == []
    assert exporter.observe_step(Hostile(), 1.0) == []  # type: ignore[arg-type]
    assert exporter.observe_step(1, 1.0, restart=Hostile()) == []  # type: ignore[arg-type]
    assert exporter.observe_step(2, 1.0) == []

    assert len(exporter.monitor.records) == 1


def test_a_refusal_is_logged_once_a_minute(make: MakeExporter, caplog: pytest.LogCaptureFixture):
    exporter = make()
    for _ in range(100):
        exporter.observe_step(1, "bad")

    lines = [r for r in caplog.records if "refused" in r.getMessage()]
    assert len(lines) == 1
    assert "'bad'" in lines[0].getMessage()


def test_a_refused_step_is_progress_all_the_same(make: MakeExporter):
    """Else a trainer with one wrong argument would be found stuck."""
    wrong: tuple[dict[str, Any], ...] = ({"step": "1"}, {"loss": "bad"})
    for changes in wrong:
        exporter = make(rank=0, run=f"r-{len(changes)}-{next(iter(changes))}")
        before = exporter.rank_view()
        observe(exporter, 1, changes)
        after = exporter.rank_view()
        assert after.progress > before.progress
        assert after.heartbeat_time >= before.heartbeat_time


def test_anomalies_are_returned_exported_and_recorded(make: MakeExporter, tmp_path: Path):
    exporter = make()
    exporter.observe_step(1, 2.0)
    (found,) = exporter.observe_step(2, math.nan)

    assert (found.kind, found.step) == ("nan_inf_loss", 2)
    seen = scrape(exporter)
    assert seen['training_health_anomalies_total{kind="nan_inf_loss",run="r"}'] == 1
    assert seen['training_health_last_anomaly_step{kind="nan_inf_loss",run="r"}'] == 2
    assert math.isnan(seen['training_health_loss{run="r"}'])
    events = [loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    assert [e["kind"] for e in events if e["event"] == "anomaly"] == ["nan_inf_loss"]


def test_other_ranks_judge_nothing_and_serve_their_page(make: MakeExporter, tmp_path: Path):
    exporter = make(rank=3, local_rank=1, world_size=4)

    assert exporter.observe_step(1, math.nan, grad_norm=Hostile()) == []
    assert exporter.observe_step(2, Hostile()) == []

    seen = scrape(exporter)
    assert seen['training_health_rank_step{rank="3",run="r"}'] == 2
    assert seen['training_health_rank_state{rank="3",run="r",state="running"}'] == 1
    assert not [name for name in seen if name.startswith("training_health_loss")]
    assert exporter.receipt_path is None
    assert exporter.state_dict() == {}
    exporter.load_state_dict({"anything": 1})
    assert exporter.report() == {"run": "r", "rank": 3, "status": "running", "step": 2}
    assert not (tmp_path / "r" / "report.json").exists()
    assert exporter.port is not None
    assert exchange(exporter.port, get("/report")).status == 404
    exporter.close("failed")
    assert exporter.state == "failed"


def test_a_second_exporter_in_one_process(make: MakeExporter):
    first, second = make(), make(run="s")
    first.observe_step(1, 1.0)
    second.observe_step(2, 3.0)

    assert first.port != second.port
    assert scrape(first)['training_health_loss{run="r"}'] == 1.0
    assert scrape(second)['training_health_loss{run="s"}'] == 3.0
    first.close()
    assert scrape(second)['training_health_loss{run="s"}'] == 3.0


def test_a_closed_exporter_writes_no_more(make: MakeExporter, tmp_path: Path):
    """One after the other for the same run: the first must not overwrite the second's record."""
    first = make(receipt_interval_s=0.01)
    first.observe_step(1, 1.0)
    first.close()
    second = make()
    second.observe_step(1, 1.0)
    second.close("failed")
    threads = [t.name for t in threading.enumerate() if t.name.startswith("health-exporter")]

    assert threads == []
    assert loads((tmp_path / "r" / "report.json").read_text())["status"] == "failed"


def test_a_taken_port_is_passed_over_with_a_warning(
    make: MakeExporter, caplog: pytest.LogCaptureFixture
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        exporter = make(port=port)

    assert exporter.port is not None
    assert port < exporter.port < port + 64
    assert f"port {port} is taken" in caplog.text


def test_a_taken_port_is_an_error_with_strict(make: MakeExporter):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EndpointError, match=str(taken.getsockname()[1])):
            make(port=taken.getsockname()[1], strict=True)
    assert not [t for t in threading.enumerate() if t.name.startswith("health-exporter")]


def test_an_address_that_is_not_there_stops_nothing(
    make: MakeExporter, caplog: pytest.LogCaptureFixture
):
    exporter = make(address="192.0.2.1")

    assert (exporter.port, exporter.url) == (None, None)
    assert "no metrics are served" in caplog.text
    exporter.observe_step(1, 1.0)


def test_the_local_rank_is_added_to_the_port(make: MakeExporter):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    exporter = make(rank=1, local_rank=1, world_size=2, port=port - 1, strict=True)

    assert exporter.port == port
    assert exporter.url == f"http://127.0.0.1:{port}/metrics"


def test_without_an_endpoint_all_else_works(make: MakeExporter):
    exporter = make(port=None)
    exporter.observe_step(1, 2.0)
    exporter.close()

    assert (exporter.port, exporter.url) == (None, None)
    assert exporter.report()["n_steps"] == 1


def test_after_close_nothing_is_raised(make: MakeExporter, caplog: pytest.LogCaptureFixture):
    exporter = make()
    exporter.observe_step(1, 2.0)
    exporter.close()
    exporter.close("failed")

    assert exporter.observe_step(2, 2.0) == []
    with exporter.phase("data"):
        pass
    exporter.load_state_dict(exporter.state_dict())
    assert exporter.report()["status"] == "finished"
    assert exporter.report()["rejected_observations"]["closed"] == 1
    assert "after close()" in caplog.text


def test_after_close_strict_raises(make: MakeExporter):
    exporter = make(strict=True)
    exporter.close()

    with pytest.raises(RuntimeError, match="after close"):
        exporter.observe_step(1, 1.0)


def test_an_unknown_status_is_an_error_with_strict(make: MakeExporter):
    exporter = make(strict=True)
    with pytest.raises(ValueError, match=r"status must be one of finished.*'done'"):
        exporter.close("done")


def test_an_unknown_status_does_not_reach_the_trainer(
    make: MakeExporter, caplog: pytest.LogCaptureFixture
):
    exporter = make()
    exporter.close("done")
    assert exporter.state == "finished"
    assert "got 'done'" in caplog.text


@pytest.mark.parametrize("name", ["dat", "", None, 5, ["data"]])
def test_an_unknown_phase_is_no_phase(
    make: MakeExporter, caplog: pytest.LogCaptureFixture, name: Any
):
    exporter = make()
    entered = False
    with exporter.phase(name):
        entered = True

    assert entered
    assert "phase must be one of" in caplog.text
    assert exporter.report()["rejected_observations"]["value"] == 1
    with pytest.raises(ValueError, match="phase must be"):
        make(strict=True, run="s").phase(name)


def test_phases_are_exported(make: MakeExporter):
    exporter = make()
    with exporter.phase("data"), exporter.phase("eval"):
        pass

    seen = scrape(exporter)
    assert {name for name in seen if "phase_seconds" in name} == {
        f'training_health_rank_phase_seconds_total{{phase="{phase}",rank="0",run="r"}}'
        for phase in ("data", "eval")
    }


@pytest.mark.parametrize("wrong", [None, [], {"version": 99}, 5, {"a": 1}])
def test_a_state_that_cannot_be_used_is_logged(
    make: MakeExporter, caplog: pytest.LogCaptureFixture, wrong: Any
):
    exporter = make()
    exporter.observe_step(1, 1.0)
    exporter.load_state_dict(wrong)
    exporter.observe_step(2, 1.0)

    assert exporter.monitor.run.n_steps == 2
    assert bool(wrong) == ("state_dict not loaded" in caplog.text)
    assert exporter.report()["rejected_observations"]["value"] == bool(wrong)


def test_a_state_travels_through_json_and_torch(make: MakeExporter, tmp_path: Path):
    first = make()
    for step in range(10):
        first.observe_step(step, 2.0)
    state = json.loads(json.dumps(first.state_dict(), allow_nan=False))
    torch.save(state, tmp_path / "checkpoint.pt")

    second = make(run="s")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
    second.observe_step(8, 2.0)

    assert second.report()["n_steps"] == 11
    assert second.report()["restarts"] == {
        "steps": [8],
        "continuity_ok": True,
        "n": 1,
        "lost_steps": 2,
    }


def test_wrong_settings_are_an_error_at_once(tmp_path: Path):
    with pytest.raises(SettingsError) as caught:
        HealthExporter(prot=1, rank=-1, linger_s="x", receipt_dir=tmp_path)  # type: ignore[call-arg, arg-type]

    assert len(caught.value.problems) == 4  # and the run's name is missing
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_monitor_is_an_error_at_once(tmp_path: Path):
    with pytest.raises(TypeError, match="monitor"):
        HealthExporter("r", receipt_dir=tmp_path)  # type: ignore[arg-type]


def test_a_monitor_with_a_past_goes_on(make: MakeExporter):
    monitor = TrainingHealthMonitor()
    monitor.observe_step(5, 1.0)
    exporter = make(monitor)
    exporter.observe_step(6, 1.0)

    assert exporter.report()["n_steps"] == 2
    assert exporter.report()["restarts"]["n"] == 1


def test_stuck_is_told_to_probes(make: MakeExporter):
    exporter = make(heartbeat_timeout_s=0.01, startup_timeout_s=1000)
    assert exporter.port is not None
    assert exchange(exporter.port, get("/healthz")).status == 200  # it has not begun
    exporter.observe_step(1, 1.0)

    def status() -> int:
        assert exporter.port is not None
        return exchange(exporter.port, get("/healthz")).status

    assert eventually(lambda: status() == 503)
    with exporter.phase("checkpoint"):
        assert status() == 200
    exporter.close()


def test_the_page_and_the_report_are_served(make: MakeExporter):
    exporter = make(run="a<b>&c")
    exporter.observe_step(1, math.inf, grad_norm=1.0)
    assert exporter.port is not None

    page = exchange(exporter.port, get("/"))
    report = exchange(exporter.port, get("/report"))

    assert page.status == 200
    assert "a&lt;b&gt;&amp;c" in page.body.decode()
    assert "a<b>" not in page.body.decode()
    assert loads(report.body.decode())["anomalies_by_kind"] == {"nan_inf_loss": 1}


def test_one_step_per_scrape_while_the_training_thread_hammers(make: MakeExporter):
    """Loss and gradient norm are functions of the step: a mix would show."""
    exporter = make()
    stop = threading.Event()

    def train() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            exporter.observe_step(step, 2.0 + step / 2**20, grad_norm=1.0 + step / 2**21)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(60):
            seen = scrape(exporter)
            step = seen.get('training_health_step{run="r"}')
            if step is None:
                continue
            assert seen['training_health_loss{run="r"}'] == 2.0 + step / 2**20
            assert seen['training_health_grad_norm{run="r"}'] == 1.0 + step / 2**21
            assert seen['training_health_steps_total{run="r"}'] == step
            assert seen['training_health_step_duration_seconds_count{run="r"}'] in (step, step - 1)
            judged = [
                seen.get(f'training_health_{name}{{run="r",signal="loss"}}')
                for name in ("baseline", "spread", "z_score")
            ]
            if judged[2] is not None:
                baseline, spread, z = judged
                assert baseline is not None
                assert spread
                assert z == pytest.approx((2.0 + step / 2**20 - baseline) / spread)
    finally:
        stop.set()
        trainer.join()
