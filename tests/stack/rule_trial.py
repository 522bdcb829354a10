"""Which mutants of the rules the cases of alerts/tests find.

Starting promtool and reading a case's samples costs more than the rules do. So all mutants of a
case stand beside each other in one rule file, under names of their own, as do their expectations.
What a mutant's rule reads is shared by all; what reads the mutant's rule is there for each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.build import milliseconds
from tests.stack.rule_mutant import Mutant, name_of, without_conditions

PROMTOOL_DEADLINE_S = 300.0

_RECORDED = re.compile(r"\w+(?::\w+)+")
_SERIES = re.compile(rf"{_RECORDED.pattern}|training_health_\w+")

Rule = Mapping[str, Any]
Combined = tuple[Sequence[Rule], Mapping[str, Any]]
Combine = Callable[["Case", Mapping[int, Mutant]], Combined]


class Case:
    """One group of one file of alerts/tests."""

    def __init__(self, file: Mapping[str, Any], content: Mapping[str, Any], rules: Sequence[Rule]):
        """`rules` are those that its file loads, in the order in which they are evaluated."""
        self.name: str = content["name"]
        self.evaluation_interval: str = file["evaluation_interval"]
        self.content = content
        self.rules = rules
        self.alert_tests: list[dict[str, Any]] = content.get("alert_rule_test", [])
        self.promql_tests: list[dict[str, Any]] = content.get("promql_expr_test", [])
        times = [check["eval_time"] for check in self.alert_tests + self.promql_tests]
        self.end: str = max(times, key=milliseconds)
        self.evaluations = milliseconds(self.end) / milliseconds(self.evaluation_interval)
        self.described = {c["alertname"] for c in self.alert_tests if c.get("exp_alerts")}
        """The alerts whose texts are expected."""
        series = {name_of(rule): _series_of(rule) for rule in rules}
        self.dependents = {name: self._dependents(name, series) for name in series}
        """By the name of each rule: itself and all that read it, also by way of others."""
        self._possible = self._with_a_value()

    def depends_on(self, name: str) -> bool:
        """Whether an alert that could fire in this case reads the rule `name`."""
        read = self.dependents.get(name, set()) & self._possible
        return any(":" not in other for other in read)

    @staticmethod
    def _dependents(name: str, series: Mapping[str, set[str]]) -> set[str]:
        names = {name}
        while more := {other for other, read in series.items() if read & names} - names:
            names |= more
        return names

    def _with_a_value(self) -> set[str]:
        """The rules that have a value at some time, as far as the series of the case tell."""
        known = {re.split(r"\W", entry["series"])[0] for entry in self.content["input_series"]}
        read = {
            name_of(rule): set(_SERIES.findall(without_conditions(rule["expr"])))
            for rule in self.rules
        }
        while more := {name for name, names in read.items() if not names or names & known} - known:
            known |= more
        return known & set(read)


def load_cases(folder: Path) -> list[Case]:
    """Those of every file in a folder, the short ones first."""
    cases = []
    for path in sorted(folder.glob("*.yml")):
        file = yaml.safe_load(path.read_text(encoding="utf-8"))
        groups = [
            group
            for rule_file in file["rule_files"]
            for group in yaml.safe_load((folder / rule_file).read_text(encoding="utf-8"))["groups"]
        ]
        order = file.get("group_eval_order", [])
        groups.sort(key=lambda group: order.index(group["name"]) if len(groups) > 1 else 0)
        rules = [rule for group in groups for rule in group["rules"]]
        cases += [Case(file, content, rules) for content in file["tests"]]
    return sorted(cases, key=lambda case: case.evaluations)


class Trial:
    """Runs cases until each mutant has failed one, or there are no more."""

    def __init__(self, promtool: str, mutants: Sequence[Mutant], folder: Path) -> None:
        self.killers: dict[int, str] = {}
        """Of mutants, by their indices: the case that failed."""
        self._promtool = promtool
        self._mutants = mutants
        self._folder = folder
        self._lock = threading.Lock()

    def run(self, cases: Sequence[Case]) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(self._run_case, case) for case in cases]:
                done.result()

    def _run_case(self, case: Case) -> None:
        with self._lock:
            alive = [
                index
                for index, mutant in enumerate(self._mutants)
                if index not in self.killers and case.depends_on(mutant.rule)
            ]
        # Few mutants of a series that many rules read change it in this case: the others are not
        # worth copies of all these rules.
        recorded = [index for index in alive if ":" in self._mutants[index].rule]
        unchanged = set(recorded) - self._failed(case, recorded, _with_comparisons)
        alive = [index for index in alive if index not in unchanged]
        for index in self._failed(case, alive, _with_expectations):
            with self._lock:
                self.killers.setdefault(index, case.name)

    def _failed(self, case: Case, indices: Sequence[int], combine: Combine) -> set[int]:
        """Those of the mutants `indices` whose part of the combined case fails."""
        failed: set[int] = set()
        while rest := {index: self._mutants[index] for index in indices if index not in failed}:
            output = self._test(case, *combine(case, rest))
            found = {int(index) for index in re.findall(r"_mutant(\d+)\b", output)}
            failed |= found
            # A rule that cannot be evaluated ends the case: the others have not been tested yet.
            if not found or not re.search(r"^ *rule: .*, err: ", output, re.M):
                break
        return failed

    def _test(self, case: Case, rules: Sequence[Rule], checks: Mapping[str, Any]) -> str:
        """What promtool says."""
        folder = self._folder / str(threading.get_ident())
        folder.mkdir(exist_ok=True)
        groups = [{"name": "all", "rules": _needed(rules, checks)}]
        (folder / "rules.yml").write_text(json.dumps({"groups": groups}))
        file = {
            "rule_files": ["rules.yml"],
            "evaluation_interval": case.evaluation_interval,
            "tests": [{**case.content, **checks}],
        }
        (folder / "test.yml").write_text(json.dumps(file))
        done = subprocess.run(
            [self._promtool, "test", "rules", folder / "test.yml"],
            capture_output=True,
            text=True,
            timeout=PROMTOOL_DEADLINE_S,
            check=False,
            env={**os.environ, "GOGC": "400"},  # less to do for its garbage collector
        )
        output = done.stdout + done.stderr
        if "_unchanged" in output or (done.returncode and "_mutant" not in output):
            pytest.fail(f"the rules themselves fail {case.name!r}:\n{output[:4000]}")
        if "could not parse" in output:
            pytest.fail(f"a mutant is no rule:\n{output[:4000]}")
        return output


def _with_comparisons(case: Case, mutants: Mapping[int, Mutant]) -> Combined:
    """Each mutant beside its rule, and checks that it has recorded the same."""
    rules: list[Rule] = []
    for rule in case.rules:
        rules.append(rule)
        for index, mutant in mutants.items():
            if mutant.rule == name_of(rule):
                rules.append(_renamed_rule(mutant.content, {mutant.rule}, f"_mutant{index}"))
    checks = []
    for index, mutant in mutants.items():
        before = f"sum_over_time({mutant.rule}[1d])"
        after = f"sum_over_time({mutant.rule}_mutant{index}[1d])"
        expr = f"{before} != {after} or {before} unless {after} or {after} unless {before}"
        checks.append({"expr": expr, "eval_time": case.end})
    copied = {f"_mutant{index}": {mutant.rule} for index, mutant in mutants.items()}
    return rules, {
        "input_series": _renamed_input(case, copied),
        "alert_rule_test": [],
        "promql_expr_test": checks,
    }


def _with_expectations(case: Case, mutants: Mapping[int, Mutant]) -> Combined:
    """Each mutant and what reads it beside the rules, with the case's expectations of it."""
    copied = {f"_mutant{i}": case.dependents[mutant.rule] for i, mutant in mutants.items()}
    changed = {f"_mutant{i}": mutant for i, mutant in mutants.items()}
    # The alerts as they are stand beside them and have to pass.
    copied["_unchanged"] = {name for names in copied.values() for name in names if ":" not in name}
    rules: list[Rule] = []
    for rule in case.rules:
        rules.append(rule)
        for suffix, names in copied.items():
            if name_of(rule) in names:
                mutant = changed.get(suffix)
                content = mutant.content if mutant and mutant.rule == name_of(rule) else rule
                if name_of(rule) not in case.described:  # its texts are read by nobody
                    content = {**content, "annotations": {}}
                rules.append(_renamed_rule(content, names, suffix))
    alert_tests = [
        {**check, "alertname": check["alertname"] + suffix}
        for suffix, names in copied.items()
        for check in case.alert_tests
        if check["alertname"] in names
    ]
    promql_tests = [
        _renamed_promql_test(check, names, suffix)
        for suffix, names in copied.items()
        for check in case.promql_tests
    ]
    return rules, {
        "input_series": _renamed_input(case, copied),
        "alert_rule_test": alert_tests,
        "promql_expr_test": promql_tests,
    }


def _renamed_input(case: Case, copied: Mapping[str, set[str]]) -> list[Mapping[str, Any]]:
    """The series of a case, and for each suffix those that are recorded by rules so renamed."""
    given: list[Mapping[str, Any]] = case.content["input_series"]
    recorded = [entry for entry in given if _RECORDED.match(entry["series"])]
    return given + [
        {**entry, "series": _renamed(entry["series"], names, suffix)}
        for suffix, names in copied.items()
        for entry in recorded
        if names & set(_RECORDED.findall(entry["series"]))
    ]


def _needed(rules: Sequence[Rule], checks: Mapping[str, Any]) -> list[Rule]:
    """The renamed ones, and what they and the checks read."""
    read = {name_of(rule): _series_of(rule) for rule in rules}
    names = {name for name in read if re.search(r"_(mutant\d+|unchanged)$", name)}
    for check in checks["promql_expr_test"]:
        names |= set(_RECORDED.findall(check["expr"]))
    while more := {other for name in names for other in read.get(name, ())} - names:
        names |= more
    return [rule for rule in rules if name_of(rule) in names]


def _series_of(rule: Rule) -> set[str]:
    """The recorded series that a rule's expression and annotations read."""
    return set(_RECORDED.findall(" ".join((rule["expr"], *rule.get("annotations", {}).values()))))


def _renamed_rule(rule: Rule, names: set[str], suffix: str) -> Rule:
    key = "alert" if "alert" in rule else "record"
    recorded = {name for name in names if ":" in name}
    renamed = {**rule, key: rule[key] + suffix, "expr": _renamed(rule["expr"], recorded, suffix)}
    if "annotations" in rule:
        renamed["annotations"] = {
            label: _renamed(text, recorded, suffix) for label, text in rule["annotations"].items()
        }
    return renamed


def _renamed_promql_test(check: Mapping[str, Any], names: set[str], suffix: str) -> dict[str, Any]:
    """The expectation for the alerts and the series `names`; of other alerts nothing is left."""
    samples = [
        {**sample, "labels": _renamed(sample["labels"], names, suffix)}
        for sample in check.get("exp_samples", ())
        if "alertname" not in sample["labels"] or names & set(re.findall(r"\w+", sample["labels"]))
    ]
    expr = _renamed(check["expr"], names, suffix)
    expr = expr.replace("ALERTS{", f'ALERTS{{alertname=~".+{suffix}", ')
    return {**check, "expr": expr, "exp_samples": samples}


def _renamed(text: str, names: set[str], suffix: str) -> str:
    return re.sub(r"\w+(?::\w+)*", lambda found: found[0] + suffix * (found[0] in names), text)
