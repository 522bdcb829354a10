"""What is wrong now, and then what has been wrong lately, or wrong enough to look after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import Literal

from health_exporter.core.anomaly import KINDS
from health_exporter.core.standing import MAX_SUSPECTS, RankRow, Standing, Suspect
from health_exporter.export.page_text import count, duration, number, ranges
from health_exporter.export.page_view import PageView
from health_exporter.snapshot import TERMINAL_STATES, RunView

_LATELY_S = 1800.0
"""A passing anomaly is shown beside the verdict for half an hour: about as long as it takes until
somebody who was told of it has looked."""

_PASSING = ("loss_spike", "grad_norm_spike")
"""A few of them are what training does. What they may lead to has kinds of its own."""

_RANKS_TOLD = 3
_HOSTS_TOLD = 6
"""Ranks of one trouble that have a sentence each, and hosts that are named of more."""

_SAID = {
    "dead": "is dead: its process is gone",
    "stuck": "is stuck: its process lives, but its training stands still",
    "missing": "has never come",
    "failed": "ended with an exception",
    "terminated": "was ended by SIGTERM",
    "interrupted": "was ended by Ctrl-C",
}

_SAID_OF_MANY = {
    "dead": "are dead: their processes are gone",
    "stuck": "are stuck: their processes live, but their training stands still",
    "missing": "have never come",
    "failed": "ended with an exception",
    "terminated": "were ended by SIGTERM",
    "interrupted": "were ended by Ctrl-C",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is or was wrong.

    Args:
        level: `bad` if it is so now, `warn` if it was, or may cost something later, `note` if it
            is what training does now and then.
        what: In a few words, for a headline.
        detail: What else is known.
        since: Unix time at which it began, where that is known.
        until: Unix time at which it was last seen, where it has passed.
    """

    level: Literal["bad", "warn", "note"]
    what: str
    detail: str = ""
    since: float | None = None
    until: float | None = None


def find_problems(page: PageView) -> tuple[Problem, ...]:
    """All of them, worst first."""
    problems = [*_of_end(page), *_of_ranks(page), *_of_own(page)]
    whole = page.snapshot.whole
    if whole is not None:
        problems += [*_of_numbers(page, whole), *_of_books(page, whole)]
    problems.sort(key=lambda problem: ("bad", "warn", "note").index(problem.level))
    return tuple(problems)


def _of_end(page: PageView) -> Iterator[Problem]:
    if page.state != "failed":
        return
    said = next((h for h in reversed(page.happenings) if h.event == "state"), None)
    told = {} if said is None else said.fields.get("exception") or {}
    words = [str(told[key]) for key in ("type", "message") if told.get(key)]
    step = page.snapshot.own.step
    yield Problem(
        level="bad",
        what="the run failed" if page.snapshot.whole else "this rank failed",
        detail=(": ".join(words) or page.snapshot.own.exception or "an exception ended it")
        + ("" if step is None else f"; last step {step:,}"),
        since=None if said is None else said.first_time,
    )


def _of_ranks(page: PageView) -> Iterator[Problem]:
    standing = page.standing
    if standing is None or page.state in TERMINAL_STATES:
        return
    stuck = standing.counts["stuck"]
    if stuck > 1 and stuck == sum(standing.counts.values()) - standing.counts["finished"]:
        culprits = [suspect for suspect in standing.suspects if suspect.reason == "stuck"]
        if len(culprits) in (0, min(stuck, MAX_SUSPECTS)):
            yield _of_standstill(page, stuck)
            return
    for reason, same in groupby(standing.suspects, key=lambda suspect: suspect.reason):
        suspects = list(same)
        if len(suspects) > _RANKS_TOLD:
            yield _of_many(page, standing, reason, suspects)
        else:
            for suspect in suspects:
                yield _of_rank(page, standing.row(suspect.rank), reason)
    if stuck and not standing.suspects:
        yield Problem(
            level="bad",
            what=f"{count(stuck, 'rank')} made no progress for too long",
            detail="which one is to blame is not clear yet",
        )


def _of_many(
    page: PageView, standing: Standing, reason: str, suspects: Sequence[Suspect]
) -> Problem:
    """Ranks with the same trouble, such as those of a host that is gone, are one problem."""
    n = max(len(suspects), standing.counts.get(reason, 0))
    hosts = sorted({suspect.host for suspect in suspects if suspect.host})
    on = f" on {hosts[0]}" if len(hosts) == 1 and n == len(suspects) else ""
    named = ranges(suspect.rank for suspect in suspects)
    unnamed = n - len(suspects)
    detail = f"ranks {named}" + (f" and {unnamed:,} more" if unnamed else "")
    if len(hosts) > 1:
        more = f" and {len(hosts) - _HOSTS_TOLD} more" if len(hosts) > _HOSTS_TOLD else ""
        detail += f"; hosts {', '.join(hosts[:_HOSTS_TOLD])}{more}"
    rows = [standing.row(suspect.rank) for suspect in suspects]
    still = max(row.still_s if reason == "stuck" else row.silent_s for row in rows)
    return Problem(
        level="bad",
        what=f"{n:,} ranks{on} {_SAID_OF_MANY[reason]}",
        detail=detail,
        since=None if reason == "missing" else page.now - still,
    )


def _of_rank(page: PageView, row: RankRow, reason: str) -> Problem:
    place = [f"on {row.host}"] if row.host else []
    detail = []
    if row.state:
        detail.append("before its first step" if row.step < 0 else f"last step {row.step:,}")
    detail += [f"in {row.phase}"] if row.phase else []
    detail += [f"at {row.where}"] if row.where else []
    still = row.still_s if reason == "stuck" else row.silent_s
    return Problem(
        level="bad",
        what=" ".join((f"rank {row.rank}", *place, _SAID[reason])),
        detail=", ".join(detail),
        since=None if reason == "missing" else page.now - still,
    )


def _of_standstill(page: PageView, n: int) -> Problem:
    found = [h for h in page.happenings if h.kind == "stuck_rank" and not h.ranks]
    where = str(found[-1].fields.get("where", "")) if found else ""
    rows = [] if page.standing is None else [page.standing.row(0)]
    return Problem(
        level="bad",
        what=f"all {n:,} ranks stand still",
        detail="nothing tells which one is to blame" + (f"; most are at {where}" if where else ""),
        since=page.now - max((row.still_s for row in rows), default=page.still_s),
    )


def _of_own(page: PageView) -> Iterator[Problem]:
    own = page.snapshot.own
    seen = page.standing is not None and page.standing.counts["stuck"]
    if page.stuck_s is not None and not seen:
        phase = f" in {page.phase}" if page.phase else ""
        yield Problem(
            level="bad",
            what=f"rank {page.snapshot.rank} on {own.host} stands still{phase}",
            detail=f"more than the {duration(own.timeout_s)} that it may",
            since=page.now - page.stuck_s,
        )
    if own.store_connected is False and own.state not in TERMINAL_STATES:
        yield Problem(
            level="warn",
            what="the job's store does not answer",
            detail="until it does, "
            + ("dead ranks are not seen" if page.snapshot.rank == 0 else "rank 0 hears nothing"),
        )


def _of_numbers(page: PageView, whole: RunView) -> Iterator[Problem]:
    last = whole.last
    now_bad = set()
    for kind, name, value in (
        ("nan_inf_loss", "loss", last.loss),
        ("nan_inf_grad", "gradient norm", last.grad_norm),
    ):
        if value is not None and not isfinite(value):
            now_bad.add(kind)
            yield _not_finite(page, kind, f"the {name} is {number(value)}")
    for kind, n in last.anomalies.items():
        at, step = last.last_anomalies.get(kind, (None, None))
        if not n or kind in now_bad:
            continue
        lately = at is not None and page.now - at < _LATELY_S
        times = f"; {count(n, 'time')} in the run" if n > 1 else ""
        if kind == "restart_discontinuity":
            # It lasts: the run goes on from weights or an optimizer that were not those it saved.
            here = at is not None and at >= whole.start_time
            yield Problem(
                level="bad" if here and whole.state == "running" else "warn",
                what="a resume broke the loss curve"
                + ("" if step is None else f" at step {step:,}"),
                detail=f"{KINDS[kind]}: check that everything was restored{times}",
                since=at,
            )
        elif lately or kind == "nan_inf_loss":
            # A loss that was NaN may have left NaN in the weights or in the optimizer.
            yield Problem(
                level="note" if kind in _PASSING else "warn",
                what=_past(kind) + ("" if step is None else f" at step {step:,}"),
                detail=times.removeprefix("; "),
                until=at,
            )


def _past(kind: str) -> str:
    return {
        "nan_inf_loss": "the loss was NaN or infinite",
        "nan_inf_grad": "the gradient norm was NaN or infinite",
        "loss_spike": "the loss jumped",
        "grad_norm_spike": "the gradient norm jumped",
        "loss_drift": "the loss has drifted upwards",
        "mfu_drop": "MFU or step speed has sunk",
        "dead_rank": "a rank was found dead",
        "stuck_rank": "a rank was found stuck",
    }.get(kind, kind)


def _not_finite(page: PageView, kind: str, what: str) -> Problem:
    found = next((h for h in reversed(page.happenings) if h.kind == kind), None)
    if found is None:
        return Problem(level="bad", what=what)
    step = "" if found.first_step is None else f" since step {found.first_step:,}"
    return Problem(
        level="bad",
        what=what + step,
        detail=f"{count(found.count, 'step')} so far" if found.count > 1 else "",
        since=found.first_time,
    )


def _of_books(page: PageView, whole: RunView) -> Iterator[Problem]:
    refused = sum(whole.rejected.values())
    if refused:
        why = ", ".join(f"{reason} {n:,}" for reason, n in whole.rejected.items() if n)
        yield Problem(
            level="warn",
            what=f"{count(refused, 'step')} could not be judged",
            detail=f"the trainer's calls were refused ({why}); its log has the reason",
        )
    if whole.receipt_failures:
        yield Problem(
            level="warn",
            what="the receipt could not be written",
            detail=f"{count(whole.receipt_failures, 'failure')}: is the disk full?",
        )
