from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health_exporter.core.beat import STATES, Beat

_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=100)
_beats = st.builds(
    Beat,
    rank=st.integers(0, 2**32 - 1),
    host=_text,
    address=_text,
    pid=st.integers(0, 2**22),
    beats=st.integers(0, 2**63),
    progress=st.integers(0, 2**63),
    step=st.integers(-1, 2**62),
    phase=_text,
    state=st.sampled_from(sorted(STATES)),
    still_s=st.floats(0, 1e9),
    timeout_s=st.floats(1e-3, 1e9) | st.just(math.inf),
    where=_text,
    marks=st.integers(0, 2**31),
    process=_text,
)


@given(_beats)
def test_a_beat_arrives_as_it_was_sent(beat: Beat):
    assert Beat.decode(beat.encode()) == beat


@given(_beats)
def test_a_newer_version_may_append_fields(beat: Beat):
    assert Beat.decode(beat.encode() + b"\0of tomorrow\0and more") == beat


@given(st.binary(max_size=200))
def test_garbage_is_no_beat(data: bytes):
    with pytest.raises(ValueError, match="not a beat"):
        Beat.decode(data)


@given(_beats, st.data())
def test_a_cut_or_damaged_beat_is_a_beat_or_a_value_error(beat: Beat, data: st.DataObject):
    raw = bytearray(beat.encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] ^= data.draw(st.integers(1, 255))
    try:
        Beat.decode(bytes(raw))
    except ValueError:
        return


@pytest.mark.parametrize("still_s", [math.nan, math.inf, -1.0])
def test_a_stillness_that_is_no_duration_is_refused(still_s: float):
    raw = _beat(still_s=still_s).encode()
    with pytest.raises(ValueError, match="still"):
        Beat.decode(raw)


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="dozing"):
        Beat.decode(_beat(state="dozing").encode())


def test_a_later_version_is_refused():
    raw = bytearray(_beat().encode())
    raw[2] = 2
    with pytest.raises(ValueError, match="version 1"):
        Beat.decode(bytes(raw))


def test_long_and_zero_ridden_texts_are_cut_and_cleaned():
    beat = Beat.decode(_beat(where="a\0b" + "x" * 1000).encode())
    assert beat.where == "a b" + "x" * 253


def test_a_number_that_does_not_fit_is_a_value_error():
    with pytest.raises(ValueError, match="rank -1"):
        _beat(rank=-1).encode()
    assert not issubclass(struct.error, ValueError)


def _beat(**changes: object) -> Beat:
    values = {
        "rank": 3,
        "host": "node-1",
        "address": "node-1:19403",
        "pid": 77,
        "beats": 1,
        "progress": 5,
        "step": 4,
        "phase": "data",
        "state": "running",
        "still_s": 0.25,
        "timeout_s": 30.0,
    }
    return Beat(**(values | changes))  # type: ignore[arg-type]
