"""Is the run healthy now; if not, what is wrong, since when, and with which rank?

The receipt's verdict is on the whole run. This one is on the present: what is wrong now, and then
what has been wrong lately, or wrong enough to look after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from health_exporter.export.page_problem import Problem, find_problems
from health_exporter.export.page_text import count, duration
from health_exporter.export.page_view import PageView

Level = Literal["bad", "warn", "info", "good"]

_ENDS = {
    "terminated": "Stopped by SIGTERM",
    "interrupted": "Stopped by Ctrl-C",
    "finished": "Finished",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The whole: worst first."""

    level: Level
    headline: str
    problems: tuple[Problem, ...]


def judge(page: PageView) -> Verdict:
    """How the run stands; on ranks other than 0, how this rank does."""
    problems = find_problems(page)
    bad = [problem for problem in problems if problem.level == "bad"]
    attention = any(problem.level == "warn" for problem in problems)
    if bad:
        more = f" (and {count(len(bad) - 1, 'more problem')})" if len(bad) > 1 else ""
        return Verdict(level="bad", headline=f"Not healthy: {bad[0].what}{more}", problems=problems)
    return Verdict(
        level="warn" if attention else _level(page),
        headline=_headline(page, attention=attention),
        problems=problems,
    )


def _level(page: PageView) -> Level:
    state = page.state
    if state in ("starting", "terminated", "interrupted"):
        return "info"
    return "info" if page.snapshot.whole is None else "good"


def _headline(page: PageView, *, attention: bool) -> str:
    state, step = page.state, page.snapshot.own.step
    at = "" if step is None else f" at step {step:,}"
    if state in _ENDS:
        return f"{_ENDS[state]}{at}" + (", with something to look at" if attention else "")
    if state == "starting":
        standing = page.standing
        missing = 0 if standing is None else standing.counts["missing"]
        if missing:
            come = page.world_size - missing
            return f"Starting: {come:,} of {count(page.world_size, 'rank')} are here"
        return f"Starting: no step yet, after {duration(page.still_s)}"
    if page.snapshot.whole is None:
        return f"This rank goes on{at}"
    return f"Running{at}, with something to look at" if attention else f"Healthy: running{at}"
