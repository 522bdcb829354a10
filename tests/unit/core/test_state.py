"""A monitor's state: what a checkpoint carries from one process to the next."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health_exporter import Anomaly, ModelFlopConfig, TrainingHealthMonitor
from health_exporter.errors import HealthExporterError, StateError

CONFIG = ModelFlopConfig(n_params=1000, n_layer=2, n_head=2, d_model=16, seq_len=8)
PRESETS = [TrainingHealthMonitor, TrainingHealthMonitor.production]
SMALL: dict[str, Any] = {
    "flop_config": CONFIG,
    "peak_flops_per_sec": 1e9,
    "loss_window": 7,
    "loss_min_periods": 3,
    "grad_window": 8,
    "grad_min_periods": 3,
    "rank_heartbeat_threshold": 2,
}


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


def eventful():
    monitor = TrainingHealthMonitor(**SMALL)
    for step in range(8):
        monitor.observe_rank_step("r", step)
        monitor.observe_step(step, 3.0, grad_norm=1.0, step_time_s=0.5, batch_size=2)
    monitor.check_rank_liveness(10)
    monitor.observe_step(8, 9.0, grad_norm=math.inf)
    monitor.observe_step(9, math.nan)
    monitor.observe_step(5, 3.0, restart=True)
    return monitor


LOSSES = st.one_of(
    st.sampled_from([3.0, 3.0, 3.1, 2.9, 50.0, math.nan, math.inf, -math.inf]),
    st.floats(min_value=-1e6, max_value=1e6),
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "loss": LOSSES,
            "grad_norm": st.one_of(
                st.none(), st.sampled_from([0.0, 1.0, 1.1, 99.0, math.nan, math.inf])
            ),
            "step_time_s": st.one_of(st.none(), st.sampled_from([0.5, 0.6, 7.0])),
            "batch_size": st.one_of(st.none(), st.integers(1, 9)),
            "restart": st.sampled_from([False, False, False, True]),
            "by": st.integers(-3, 4),
        }
    ),
    max_size=40,
)


def train(monitor, steps, step):
    """The anomalies of each of `steps`, which move on `by` so many, back only in a resume."""
    found = []
    for fields in steps:
        observed = dict(fields)
        by = observed.pop("by")
        step = max(0, step + by) if observed["restart"] else step + max(1, by)
        found.append(repr(monitor.observe_step(step, **observed)))
    return found, step


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=60, deadline=None)
@given(before=STEPS, after=STEPS)
def test_a_restored_monitor_goes_on_as_if_it_had_never_stopped(preset, before, after):
    original, restored = preset(**SMALL), preset(**SMALL)
    _, step = train(original, before, 0)
    restored.load_state_dict(through_json(original.state_dict()))
    assert restored.report() == original.report()
    assert train(restored, after, step) == train(original, after, step)
    assert restored.report() == original.report()
    assert restored.continuity_ok() == original.continuity_ok()
    assert through_json(restored.state_dict()) == through_json(original.state_dict())


def test_anomalies_come_back_as_they_were():
    restored = TrainingHealthMonitor(**SMALL)
    restored.load_state_dict(through_json(eventful().state_dict()))
    assert repr(restored.anomalies) == repr(eventful().anomalies)
    assert [anomaly.kind for anomaly in restored.anomalies] == [
        "dead_rank",
        "loss_spike",
        "nan_inf_grad",
        "nan_inf_loss",
    ]


@pytest.mark.parametrize("jump_after", [0, 1, 2])
def test_a_process_may_end_right_after_its_resume(jump_after):
    """The steps judged against the baseline before the resume go on in the next process."""
    monitor = TrainingHealthMonitor(**SMALL)
    for step in range(8):
        monitor.observe_step(step, 3.0)
    for extra in range(jump_after):
        monitor.observe_step(8 + extra, 3.0, restart=extra == 0)
    later = TrainingHealthMonitor(**SMALL)
    later.load_state_dict(through_json(monitor.state_dict()))
    (anomaly,) = later.observe_step(8 + jump_after, 9.0, restart=jump_after == 0)
    assert anomaly.kind == ("restart_discontinuity" if jump_after < 2 else "loss_spike")


def test_a_discontinuity_is_one_though_the_process_ended_between_its_steps():
    monitor = TrainingHealthMonitor(**SMALL)
    for step in range(8):
        monitor.observe_step(step, 3.0)
    assert len(monitor.observe_step(8, 9.0, restart=True)) == 1
    later = TrainingHealthMonitor(**SMALL)
    later.load_state_dict(through_json(monitor.state_dict()))
    assert later.observe_step(9, 9.0) == []


def test_a_resumed_process_may_go_back_and_counts_the_lost_steps():
    later = TrainingHealthMonitor(**SMALL)
    later.load_state_dict(eventful().state_dict())
    with pytest.raises(ValueError, match="step must be > 5"):
        later.observe_step(5, 3.0)
    later.observe_step(2, 3.0, restart=True)
    restarts = later.report()["restarts"]
    assert restarts == {"steps": [5, 2], "continuity_ok": True, "n": 2, "lost_steps": 5 + 4}


def test_a_shorter_window_takes_the_newest_values():
    monitor = TrainingHealthMonitor()
    for step in range(20):
        monitor.observe_step(step, float(step), grad_norm=float(step))
    later = TrainingHealthMonitor(loss_window=5, grad_window=5)
    later.load_state_dict(monitor.state_dict())
    (loss, grad) = later.observe_step(20, 1e6, grad_norm=1e6)
    assert (loss.baseline, grad.baseline) == (17.0, 17.0)


def test_the_thresholds_stay_those_of_the_monitor():
    later = TrainingHealthMonitor(loss_z_thresh=1e13, loss_window=7, loss_min_periods=3)
    later.load_state_dict(eventful().state_dict())
    assert later.observe_step(6, 9.0) == []
    assert later.loss_z_thresh == 1e13


def test_loading_replaces_what_was_there():
    later = eventful()
    later.load_state_dict(TrainingHealthMonitor(**SMALL).state_dict())
    assert later.report() == TrainingHealthMonitor(**SMALL).report()
    assert later.records == []
    assert later.observe_step(0, 99.0) == []


def test_mfu_goes_on_with_this_processs_hardware():
    later = TrainingHealthMonitor(**{**SMALL, "peak_flops_per_sec": 2e9})
    later.load_state_dict(eventful().state_dict())
    later.observe_step(6, 3.0, step_time_s=0.5, batch_size=2)
    report = later.report()["mfu"]
    assert report["n_samples"] == 9
    assert report["min"] == pytest.approx(2 * 72_576 / 0.5 / 2e9)


def test_a_state_dict_is_a_copy():
    monitor = eventful()
    before = copy.deepcopy(monitor.state_dict())
    state = monitor.state_dict()
    state["run"]["anomalies"].clear()
    state["run"]["restart_steps"].append(99)
    state["run"]["anomalies_by_kind"].clear()
    state["loss"]["baseline"]["values"].clear()
    state["outages"][0]["rank"] = "x"
    assert monitor.state_dict() == before


def test_a_loaded_state_dict_is_not_shared():
    state = eventful().state_dict()
    before = copy.deepcopy(state)
    later = TrainingHealthMonitor(**SMALL)
    later.load_state_dict(state)
    later.observe_step(6, 3.0, grad_norm=2.0)
    later.observe_rank_step("r", 6)
    assert state == before


def test_extreme_numbers_survive():
    monitor = TrainingHealthMonitor(flop_config=CONFIG, peak_flops_per_sec=5e-324)
    for step in range(8):
        monitor.observe_step(step, 1e308 / (step + 1), step_time_s=1e308)
    monitor.observe_step(8, 1.7e308, step_time_s=5e-324)
    later = TrainingHealthMonitor(flop_config=CONFIG, peak_flops_per_sec=5e-324)
    later.load_state_dict(through_json(monitor.state_dict()))
    assert later.report() == monitor.report()


def places(value, path=()):
    """The path of every key of a state, and of the first two entries of every list."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2]
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list, tuple)):
            yield from places(item, (*path, key))


STATE = through_json(eventful().state_dict())
PLACES = list(places(STATE))


def at(state, path):
    for key in path:
        state = state[key]
    return state


def check_refused(state):
    monitor = eventful()
    before = repr((monitor.state_dict(), monitor.report(), monitor.records))
    with pytest.raises(StateError):
        monitor.load_state_dict(state)
    assert repr((monitor.state_dict(), monitor.report(), monitor.records)) == before
    # Not only what it says: it judges on as before, too.
    assert len(monitor.observe_step(6, 9.0)) == len(eventful().observe_step(6, 9.0)) == 1


# A window is rebuilt with the sizes of the monitor that loads it, so its own are not read.
UNREAD = {"window", "min_periods"}
READ = [path for path in PLACES if path[-1] not in UNREAD]


def of_type(kind):
    return [path for path in READ if type(at(STATE, path)) is kind]


def dotted(path):
    return ".".join(map(str, path)) if isinstance(path, tuple) else repr(path)


def damaged(path, value):
    state = copy.deepcopy(STATE)
    at(state, path[:-1])[path[-1]] = value
    return state


@pytest.mark.parametrize("path", READ, ids=dotted)
def test_a_missing_key_is_damage(path):
    if not isinstance(path[-1], str) or path[-1] == "rank" or path[-2:-1] == ("anomalies_by_kind",):
        return  # one entry fewer; or a kind that has not happened; or an anomaly of no one rank
    if path[-1] == "recovered_at_step":
        return  # an outage that goes on
    state = copy.deepcopy(STATE)
    del at(state, path[:-1])[path[-1]]
    check_refused(state)


@pytest.mark.parametrize("value", [object(), [[]], {"x": {}}], ids=["object", "list", "dict"])
@pytest.mark.parametrize("path", READ, ids=dotted)
def test_a_value_of_another_kind_is_damage(path, value):
    check_refused(damaged(path, value))


@pytest.mark.parametrize("value", ["7", 7.5, math.nan, math.inf, -2, None])
@pytest.mark.parametrize("path", [p for p in of_type(int) if p != ("n_outages",)], ids=dotted)
def test_a_number_that_is_no_count_is_damage(path, value):
    if path == ("run", "n_tokens") and value is None:
        return  # unknown
    check_refused(damaged(path, value))


@pytest.mark.parametrize("value", ["7", True, math.nan, math.inf, None])
@pytest.mark.parametrize(
    "path", [p for p in of_type(float) if p[-2] == "values" or p[-1] in ("min", "max")], ids=dotted
)
def test_a_number_that_is_not_finite_is_damage(path, value):
    check_refused(damaged(path, value))


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_a_flag_that_is_none_is_damage(value):
    check_refused(damaged(("discontinuity_flagged",), value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run", "n_anomalies"), 3),
        (("run", "n_restarts"), 0),
        (("n_outages",), 0),
        (("run", "mfu", "total"), math.nan),
        (("run", "anomalies", 0, "kind"), 5),
        (("run", "anomalies", 0, "rank"), 5),
        (("run", "anomalies", 0, "value"), None),
        (("run", "anomalies", 0, "unknown"), 1),
        (("outages", 0, "rank"), None),
        (("outages", 0, "unknown"), 1),
    ],
    ids=dotted,
)
def test_what_contradicts_the_rest_is_damage(path, value):
    check_refused(damaged(path, value))


def test_a_rank_may_have_died_before_its_first_step():
    monitor = TrainingHealthMonitor()
    monitor.add_anomaly(Anomaly(-1, "dead_rank", 600.0, 600.0, None, -1, rank="3"))
    later = TrainingHealthMonitor()
    later.load_state_dict(through_json(monitor.state_dict()))
    assert later.anomalies == monitor.anomalies


def test_a_rank_may_have_the_name_of_a_number():
    monitor = TrainingHealthMonitor(rank_heartbeat_threshold=1)
    monitor.observe_rank_step("NaN", 0)
    monitor.check_rank_liveness(2)
    later = TrainingHealthMonitor()
    later.load_state_dict(through_json(monitor.state_dict()))
    assert [anomaly.rank for anomaly in later.anomalies] == ["NaN"]


@pytest.mark.parametrize("state", [None, [], "", 3, {}, {"version": 1}], ids=repr)
def test_what_is_no_state_is_damage(state):
    check_refused(state)


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
def test_another_version_is_refused_and_named(version):
    state = {**STATE, "version": version}
    check_refused(state)
    with pytest.raises(StateError, match=f"version {version!r}"):
        eventful().load_state_dict(state)


def test_the_error_is_one_of_this_package_and_a_value_error():
    with pytest.raises(HealthExporterError, match="damaged"):
        eventful().load_state_dict({"version": 1})
    with pytest.raises(ValueError, match="damaged"):
        eventful().load_state_dict({"version": 1})
