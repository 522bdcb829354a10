"""PromQL of more than one panel, and the values and alerts of the rules that it agrees with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from health_exporter.snapshot import RUN_STATES

ALERTS_FOLDER = Path(__file__).resolve().parents[2] / "alerts"
PREFIX = "TrainingHealth"
WATCHDOG = "TrainingHealthWatchdog"
CRITICAL, WARNING_ONLY = 'severity="critical"', 'severity="warning"'

RUN = 'job=~"$job",run="$run"'
"""Matchers of what the exporter of the one chosen run says."""
TOLD = 'run="$run"'
"""Matchers of what the rules say of it: alerts and recorded series have no job."""

LAST_KNOWN = "15m"
"""How far back a rank's last word is looked for: a rank that is gone has no series any more. Long
enough to be read after a page, and 60 samples a rank: 16,384 ranks are a million samples."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of the rules."""

    name: str
    severity: str
    summary: str

    @property
    def words(self) -> str:
        """Its name without the prefix, in words: `Rank dead`."""
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", self.name.removeprefix(PREFIX))
        return " ".join(
            [words[0], *(word if word.isupper() else word.lower() for word in words[1:])]
        )


def load_alerts(folder: Path = ALERTS_FOLDER) -> list[Alert]:
    """Every alert of the rules but the watchdog, in the rules' order."""
    alerts = []
    for path in (folder / "rules" / f"{name}.yml" for name in ("liveness", "training", "exporter")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                if "alert" in rule and rule["alert"] != WATCHDOG:
                    severity = rule["labels"]["severity"]
                    alerts.append(Alert(rule["alert"], severity, rule["annotations"]["summary"]))
    return alerts


def load_values(folder: Path = ALERTS_FOLDER) -> dict[str, str]:
    """The rules' numbers and names, as text."""
    content: Mapping[str, Any] = yaml.safe_load(
        (folder / "values.yaml").read_text(encoding="utf-8")
    )
    return {
        name: str(entry["value"]) for section in content.values() for name, entry in section.items()
    }


ALERTS = load_alerts()
PAGES = [alert for alert in ALERTS if alert.severity == "critical"]
VALUES = load_values()

# Codes of the verdict. Whatever pages is worse than a warning, and that worse than any state; the
# pages are in the rules' order, which is from the cause to the consequence.
STATE_CODES = {state: code for code, state in enumerate(RUN_STATES, 1)}
NOT_SCRAPED = 7
NO_RULES = 8
WARNING = 10
PAGE_CODES = {alert.name: code for code, alert in enumerate(PAGES, 20)}

STATES_BY_WORTH = ("running", "starting", "failed", "terminated", "interrupted", "finished")


def verdict(own: str, recorded: str) -> str:
    """A code by run: the first page that fires, else a warning, else the run's state or last word.

    Without the rules, which always fire one alert, no verdict is possible.

    Args:
        own: Matchers of the exporter's metrics.
        recorded: Matchers of alerts and recording rules, which have no job.
    """
    blind = f'ALERTS{{alertname="{WATCHDOG}"}}'
    parts = [
        f"(max by (run) (training_health_run_info{{{own}}}) * 0 + {NO_RULES} unless on () {blind})"
    ]
    parts += [
        f'max by (run) (ALERTS{{alertname="{name}",alertstate="firing",{recorded}}}) * 0 + {code}'
        for name, code in PAGE_CODES.items()
    ]
    parts.append(
        f'max by (run) (ALERTS{{alertname=~"{PREFIX}.+",alertstate="firing",severity="warning",'
        f"{recorded}}}) * 0 + {WARNING}"
    )
    parts += [
        f'max by (run) (training_health_run_state{{{own},state="{state}"}} == 1) * 0 + '
        f"{STATE_CODES[state]}"
        for state in STATES_BY_WORTH
    ]
    # The process is gone, and said so before; since the newest attempt began.
    goodbye = "run_state:training_health_goodbye:time"
    began = f"max by (run) (max_over_time(run:training_health_start:time{{{recorded}}}[12h]))"
    parts += [
        f'(max by (run) (last_over_time({goodbye}{{{recorded},state="{state}"}}[12h]))'
        f" >= on (run) {began}) * 0 + {STATE_CODES[state]}"
        for state in STATES_BY_WORTH[2:]
    ]
    seen = f"run:training_health_seen:time{{{recorded}}}"
    parts.append(f"max by (run) (last_over_time({seen}[12h])) * 0 + {NOT_SCRAPED}")
    return "\nor on (run)\n".join(parts)


def firing(recorded: str, labels: Iterable[str]) -> str:
    """Unix time since when each alert is active that fires now; the oldest by `labels`."""
    matchers = f'alertname=~"{PREFIX}.+",{recorded}'
    return (
        f"min by ({', '.join(labels)}) (ALERTS_FOR_STATE{{{matchers}}}"
        f' and ignoring (alertstate) ALERTS{{{matchers},alertstate="firing"}})'
    )


def suspects(own: str, recorded: str) -> str:
    """Ranks to look at, with host and reason: rank 0's list, and what the rules know without it."""
    dead = f"run_rank_host:training_health_dead:one{{{recorded}}}"
    failed = f"run_rank:training_health_failed:time{{{recorded}}} * 0 + 1"
    return (
        f"max by (run, rank, host, reason) (training_health_suspect_rank{{{own}}})\n"
        f'or on (run, rank) label_replace({dead}, "reason", "dead", "", "")\n'
        f'or on (run, rank) label_replace({failed}, "reason", "failed", "", "")'
    )


def latest(metric: str, matchers: str, labels: str = "rank") -> str:
    """The last word of each rank on `metric`, whether or not it is still there."""
    return f"max by ({labels}) (last_over_time({metric}{{{matchers}}}[{LAST_KNOWN}]))"


def total(query: str, base: str, label: str) -> str:
    """`query` with a NaN for each element of `base` that it lacks, so that tables can be merged."""
    return f"({query})\nor on ({label}) ({base}) * NaN"
