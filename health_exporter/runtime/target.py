"""Targets as Prometheus' service discovery takes them, over HTTP and from a file.

The metrics carry `run` and `rank` themselves, and `training_health_suspect_rank` the suspect's
rank and host. Labels of a target by these names would win over them (`honor_labels` is false by
default): the scraped ones would become `exported_rank`, and alerts would name the rank that was
scraped. What is told of a target is therefore told in `__meta_` labels, which Prometheus drops
after relabelling, so that a site can still map them.
"""

from __future__ import annotations

import functools
import ipaddress
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from health_exporter.core.standing import Standing
from health_exporter.runtime.settings import Settings

_PREFIX = "__meta_training_health_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One rank's endpoint.

    Args:
        address: `host:port`, IPv6 in brackets.
        run: Name of the run; "" where it is not known.
        host: Name of its machine.
        rank: Its number in the job; None where it is not known.
        local_rank: Its number on its machine; None where it is not known.
    """

    address: str
    run: str
    host: str
    rank: int | None = None
    local_rank: int | None = None


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rank0_address(settings: Settings, environ: Mapping[str, str]) -> str:
    """Where rank 0's endpoint is likely to be: launchers announce its host; "" if they do not."""
    host = environ.get("MASTER_ADDR", "").strip("[]")
    return join_address(host, settings.port) if host and settings.port else ""


def is_ipv6(text: str) -> bool:
    """Whether it is an IPv6 address, without brackets; it may have a zone, as in `fe80::1%eth0`."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def render(targets: Iterable[Target]) -> str:
    """The JSON list that Prometheus reads, a target on each line; `[]` when there are none.

    `__meta_` labels have no entry where the value is not known, which to Prometheus is the same as
    an empty one.
    """
    lines = ",\n".join(map(_line, targets))
    return f"[\n{lines}\n]\n" if lines else "[]\n"


# Of the run and the host, which neighbours share.
_quoted = functools.lru_cache(maxsize=64)(json.dumps)


def _line(target: Target) -> str:
    # Each target on its own: one call for all of 16,384 would hold the interpreter's lock, and the
    # training thread, for as long as it takes.
    labels = []
    if target.run:
        labels.append(f'"{_PREFIX}run": {_quoted(target.run)}')
    if target.rank is not None:
        labels.append(f'"{_PREFIX}rank": "{target.rank}"')
    if target.local_rank is not None:
        labels.append(f'"{_PREFIX}local_rank": "{target.local_rank}"')
    if target.host:
        labels.append(f'"{_PREFIX}host": {_quoted(target.host)}')
    return f'{{"targets": [{json.dumps(target.address)}], "labels": {{{", ".join(labels)}}}}}'


def standing_targets(
    own: Target,
    standing: Standing | None,
    *,
    linger_s: float,
    registered: Iterable[Target] = (),
) -> Iterator[Target]:
    """Targets of the ranks that have come and have an endpoint, in order of rank.

    Ranks that rank 0 has not heard of follow, as far as they have registered: they may hang in the
    job's rendezvous, or have come in an earlier attempt only and be missed in this one.

    One that is dead, or failed, stays: it would not be missed any more if its target went with it.
    One that has finished goes, but only after `linger_s` seconds, in which it waits for the scrape
    that sees how it ended.

    Args:
        own: Rank 0.
        standing: How all ranks stand; None where that is not known (yet).
        linger_s: How long a rank that has finished may still be there.
        registered: What ranks have left on disk.
    """
    if own.address:
        yield own
    come, taken = {own.rank}, {own.address}
    for row in standing.rows() if standing is not None else ():
        if row.status == "missing" or row.rank == own.rank:
            continue
        come.add(row.rank)
        taken.add(row.address)
        has_gone = row.state == "finished" and row.silent_s > linger_s
        if row.address and not has_gone:
            yield Target(address=row.address, run=own.run, host=row.host, rank=row.rank)
    for target in registered:
        if target.rank not in come and target.address not in taken:
            yield target
