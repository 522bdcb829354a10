"""One JSON object a line: one's own, Weights & Biases, Trackio, Hugging Face, structured logs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from health_exporter.replay import column
from health_exporter.replay.reader import NO, Guess
from health_exporter.replay.record import RowMaker
from health_exporter.replay.row import FIELDS, Row
from health_exporter.replay.source import lines
from health_exporter.replay.tally import Tally
from health_exporter.replay.text import resume_in

# Objects whose keys are looked at before the columns are chosen: at one evaluation every few
# hundred steps, training steps are among them many times over.
SAMPLED = 2000

# No trainer nests its metrics deeper; what is deeper is configuration.
_DEEPEST = 4

Object = tuple[int, dict[str, Any], str]
"""Line, object, and what was said of a resume before it."""


class JsonLinesReader:
    """Objects, one a line, also behind a prefix such as `:::MLLOG` or a date."""

    name: ClassVar = "jsonl"
    title: ClassVar = "JSON lines"

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = mapping

    def detect(self, head: bytes) -> Guess:
        """Count the objects with a loss among the first lines."""
        n_lines = n_objects = 0
        found: list[dict[str, Any]] = []
        for raw in head.split(b"\n"):
            text = raw.decode("utf-8", "replace").strip("\ufeff\r ")
            if not text:
                continue
            n_lines += 1
            parsed = parse(text)
            if isinstance(parsed, dict):
                n_objects += 1
                if len(found) < SAMPLED:
                    found.append(flat(parsed))
        samples = column.collect(found)
        if not n_objects or not ("loss" in self._mapping or column.choose(samples, {})):
            return NO
        share = n_objects / n_lines
        why = f"{n_objects:,} of the first {n_lines:,} lines are JSON objects, some with a loss"
        return Guess(confidence=0.99 if share > 0.8 else 0.7, why=why)

    def rows(self, stream: BinaryIO, tally: Tally) -> Iterator[Row]:
        """The rows; what an object lacks is None."""
        return rows_of(_objects(stream, tally), self._mapping, tally)


def rows_of(objects: Iterable[Object], mapping: Mapping[str, str], tally: Tally) -> Iterator[Row]:
    """The rows in JSON objects, with columns chosen by the first of them.

    Raises:
        LogError: No column is a loss, or one that the user named does not exist.
    """
    stream = iter(objects)
    first = list(itertools.islice(stream, SAMPLED))
    samples = column.collect(flat(found) for _, found, _ in first)
    chosen = column.choose(samples, mapping)
    if not chosen:
        raise column.missing_loss(samples)
    paths = {name: _path(key, [found for _, found, _ in first]) for name, key in chosen.items()}
    return _rows(itertools.chain(first, stream), paths, RowMaker(chosen, tally))


def _rows(
    objects: Iterable[Object], paths: Mapping[str, tuple[str, ...]], maker: RowMaker
) -> Iterator[Row]:
    step, loss, norm, seconds, rate, time, restart = (_getter(paths.get(name)) for name in FIELDS)
    make = maker.make
    said = ""
    for line, found, resumed in objects:
        said = said or resumed
        row = make(
            line,
            step(found),
            loss(found),
            norm(found),
            seconds(found),
            rate(found),
            time(found),
            restart(found),
            said,
        )
        if row is not None:
            yield row
            said = ""


def parse(text: str) -> Any:
    """The object on a line, or behind a prefix; None if there is none, or a ValueError as value."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        return json.loads(text[start:])
    except (ValueError, RecursionError) as error:
        return error


def flat(found: Mapping[str, Any], prefix: str = "", depth: int = 1) -> dict[str, Any]:
    """The numbers and strings of an object by their paths, such as `train/loss`."""
    result: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            if depth < _DEEPEST:
                result.update(flat(value, f"{prefix}{key}/", depth + 1))
        elif not isinstance(value, list):
            result[prefix + key] = value
    return result


def _objects(stream: BinaryIO, tally: Tally) -> Iterator[Object]:
    resumed = ""
    loads = json.loads
    for line, text in lines(stream, tally):
        start = text.find("{")
        if start < 0:
            said = resume_in(text)
            resumed = resumed if said is None else said
            continue
        try:
            found = loads(text[start:] if start else text)
        except (ValueError, RecursionError):
            said = resume_in(text)
            resumed = resumed if said is None else said
            if start == 0 or '"' in text:  # others print braces too
                tally.damage(line, "no JSON object that can be read")
            continue
        if type(found) is dict:
            yield line, found, resumed
            resumed = ""


def _path(name: str, objects: list[dict[str, Any]]) -> tuple[str, ...]:
    """The keys from the outermost to the value: `train/loss` may be one key, or two."""
    for found in objects:
        path = _walk(found, name)
        if path is not None:
            return path
    return (name,)


def _walk(found: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    if name in found and not isinstance(found[name], dict):
        return (name,)
    for key, value in found.items():
        if isinstance(value, dict) and name.startswith(key + "/"):
            rest = _walk(value, name[len(key) + 1 :])
            if rest is not None:
                return (key, *rest)
    return None


def _getter(path: tuple[str, ...] | None) -> Any:
    if path is None:
        return lambda found: None
    if len(path) == 1:
        key = path[0]
        return lambda found: found.get(key)

    def get(found: Any) -> Any:
        for part in path:
            if not isinstance(found, dict):
                return None
            found = found.get(part)
        return found

    return get
