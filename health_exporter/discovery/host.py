"""The hosts of a job, as launchers and schedulers write them down. Pure: texts in, values out."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from health_exporter.runtime.target import is_ipv6

MAX_HOSTS = 1 << 17
"""Ten times the largest clusters: one digit too many in a range must not fill the memory."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_IGNORED_OPTIONS = frozenset({"max_slots", "max-slots"})


def parse_hostfile(text: str) -> dict[str, int]:
    """Hosts and their slots, in the order in which they are first named.

    One host a line, `#` begins a comment. `slots=N` is as of Open MPI: how many processes the host
    takes. A host without has one, and one that is named several times has as many as all its lines
    together, so that a list with one line for each process is fine too.

    Raises:
        ValueError: A line cannot be understood, or there is no host; it names line and text.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _host(words[0].rpartition("@")[2])  # Open MPI allows user@host
            slots[host] = slots.get(host, 0) + _slots(words[1:])
        except ValueError as error:
            raise ValueError(f"line {number}, {line.strip()!r}: {error}") from None
    if not slots:
        raise ValueError("it names no host")
    return slots


def _host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not is_ipv6(bare) and (bare != text or not _NAME.fullmatch(text)):
        raise ValueError(f"{text!r} is neither a host's name nor an address")
    return bare


def _slots(words: list[str]) -> int:
    slots = 1
    for word in words:
        name, _, value = word.partition("=")
        if name in _IGNORED_OPTIONS:
            continue
        if name != "slots":
            raise ValueError(f"{word!r} is not understood, only slots=N is")
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
            raise ValueError(f"slots must be an integer >= 1, got {value!r}")
        slots = int(value)
    return slots


def expand_nodelist(text: str) -> list[str]:
    """The hosts that a Slurm node list names, each once, in its order.

    `gpu[001-004,007],login1,rack[1-2]n[01-03]`: commas outside of brackets separate names; each
    pair of brackets stands for its numbers, the last one running fastest; a range has at least as
    many digits as its first number is written with.

    Raises:
        ValueError: It is empty or malformed, or names more than `MAX_HOSTS` hosts.
    """
    if not text.strip():
        raise ValueError("it names no host")
    hosts: dict[str, None] = {}
    n_hosts = 0
    for item in _split(text):
        parts = list(_parts(item))
        n_hosts += math.prod(len(part) for part in parts)
        if n_hosts > MAX_HOSTS:
            raise ValueError(f"it names more than {MAX_HOSTS} hosts")
        for combination in itertools.product(*parts):
            host = "".join(combination)
            if not _NAME.fullmatch(host):
                raise ValueError(f"{host!r} is no host's name")
            hosts[host] = None
    return list(hosts)


def _split(text: str) -> Iterator[str]:
    """Names, still with brackets: what stands between commas outside of brackets."""
    begin, inside = 0, False
    for position, character in enumerate(text):
        if character in "[]":
            if inside == (character == "["):
                raise ValueError(f"bracket {character!r} at character {position + 1} has no pair")
            inside = not inside
        elif character == "," and not inside:
            yield _named(text[begin:position], begin)
            begin = position + 1
    if inside:
        raise ValueError(f"bracket '[' at character {text.rindex('[') + 1} has no pair")
    yield _named(text[begin:], begin)


def _named(item: str, begin: int) -> str:
    if not item.strip():
        raise ValueError(f"no name at character {begin + 1}")
    return item.strip()


def _parts(item: str) -> Iterator[list[str]]:
    """What each piece of a name can be: a text itself, or the numbers of a pair of brackets."""
    for number, piece in enumerate(re.split(r"[\[\]]", item)):
        if number % 2 == 0:
            yield [piece]
        else:
            yield [text for part in piece.split(",") for text in _numbers(part)]


def _numbers(part: str) -> list[str]:
    match = _RANGE.fullmatch(part.strip())
    if match is None:
        raise ValueError(f"{part!r} is no number and no range, such as 1-4")
    first, last = match[1], match[2] or match[1]
    # Compared by their lengths before they are numbers: int() refuses thousands of digits.
    if max(len(first.lstrip("0")), len(last.lstrip("0"))) > len(str(MAX_HOSTS**2)):
        raise ValueError(f"{part!r} has too many digits")
    if int(last) < int(first):
        raise ValueError(f"range {part!r} ends before it begins")
    if int(last) - int(first) >= MAX_HOSTS:
        raise ValueError(f"range {part!r} has more than {MAX_HOSTS} numbers")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
