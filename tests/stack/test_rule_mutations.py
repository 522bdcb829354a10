"""Each rule's numbers, times, ranges and aggregations matter to the cases of alerts/tests.

A mutant is a rule with one small mistake; a case of alerts/tests has to fail with it. Those that
cannot change what anybody sees stand in rule_equivalents.yml, each with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.stack.prometheus_server import require_tool
from tests.stack.rule_mutant import KINDS, Mutant, mutants_of, name_of
from tests.stack.rule_trial import Trial, load_cases

ALERTS = Path(__file__).resolve().parents[2] / "alerts"
EQUIVALENTS = Path(__file__).with_name("rule_equivalents.yml")


def all_mutants() -> dict[str, list[Mutant]]:
    """By the names of their rules."""
    return {
        name_of(rule): mutants_of(rule)
        for path in sorted((ALERTS / "rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    }


def equivalents() -> set[tuple[str, str]]:
    """Rule and change of each mutant that changes nothing."""
    groups = yaml.safe_load(EQUIVALENTS.read_text(encoding="utf-8"))
    return {
        (rule, change)
        for group in groups
        for rule, changes in group["changes"].items()
        for change in changes
    }


MUTANTS = all_mutants()


@pytest.fixture(scope="module")
def survivors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Mutant]]:
    """The mutants that no case fails with, by the names of their rules."""
    excused = equivalents()
    tried = [
        mutant
        for mutants in MUTANTS.values()
        for mutant in mutants
        if (mutant.rule, mutant.change) not in excused
    ]
    trial = Trial(require_tool("promtool"), tried, tmp_path_factory.mktemp("mutants"))
    trial.run(load_cases(ALERTS / "tests"))
    alive = [mutant for index, mutant in enumerate(tried) if index not in trial.killers]
    return {name: [mutant for mutant in alive if mutant.rule == name] for name in MUTANTS}


@pytest.mark.timeout(1200)  # the first of them waits for all mutants of all rules
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}")
        for name, mutants in MUTANTS.items()
        for kind in KINDS
        if any(mutant.kind == kind for mutant in mutants)
    ],
)
def test_a_case_fails_when_a_rule_says_something_else(
    name: str, kind: str, survivors: Mapping[str, Sequence[Mutant]]
) -> None:
    changes = [mutant.change for mutant in survivors[name] if mutant.kind == kind]

    assert not changes, (
        f"no case of alerts/tests fails when {name} says something else:\n  " + "\n  ".join(changes)
    )


def test_each_equivalent_is_a_mutant_still() -> None:
    known = {(mutant.rule, mutant.change) for mutants in MUTANTS.values() for mutant in mutants}

    assert sorted(equivalents() - known) == []


def test_the_mutants_of_a_rule() -> None:
    rule = {
        "alert": "Slow",
        "expr": "max by (run, rank) (rate(steps_total[5m])) < 2 # a second\nunless on (run) done",
        "for": "1m",
    }

    changes = {kind: [m.change for m in mutants_of(rule) if m.kind == kind] for kind in KINDS}

    expr = "max by (run, rank) (rate(steps_total[5m])) < 2 # a second"
    assert changes == {
        "threshold": [
            expr.replace("<", "`< -> <=`"),
            expr.replace("2", "`2 -> 1`"),
            expr.replace("2", "`2 -> 3`"),
        ],
        "for": ["for: `1m -> 30s`", "for: `1m -> 2m`", "for: `1m -> 0s`"],
        "range": [expr.replace("5m", "`5m -> 150s`"), expr.replace("5m", "`5m -> 10m`")],
        "aggregation": [
            expr.replace("max", "`max -> min`"),
            expr.replace("max", "`max -> count`"),
            expr.replace("rate", "`rate -> irate`"),
            expr.replace("by (run, rank)", "`by (run, rank) -> by (rank)`"),
            expr.replace("by (run, rank)", "`by (run, rank) -> by (run)`"),
        ],
        "clause": ["`unless on (run) done -> `"],
    }
