"""Each rule is changed in each of its parts, and its promtool tests must notice."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.stack.prometheus_server import require_tool

ALERTS = Path(__file__).resolve().parents[2] / "alerts"
pytestmark = pytest.mark.timeout(300)

# Quick ones first. memory.yml, which is twelve hours long, is left to the unchanged rules.
TEST_FILES = {
    "liveness": ("innocent", "stuck", "missing", "failed", "terminated", "dead"),
    "training": ("training", "speed"),
    "exporter": ("exporter", "unreachable"),
}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

# What no test can notice, and why.
EQUIVALENT: dict[str, str] = {}


class Mutant(NamedTuple):
    """One change of one rule."""

    rules: str
    rule: str
    change: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.change}"


def seconds(duration: str) -> float:
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smh])", duration))


def changed_duration(duration: str, factor: float) -> str:
    return f"{round(seconds(duration) * factor * 1000)}ms"


def changes(rule: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, what is done to it, its new text."""
    for key in ("for", "keep_firing_for"):
        if key in rule:
            for factor in (0.3, 3.0):
                yield key, f"{key} x {factor}", changed_duration(rule[key], factor)
    expression = rule["expr"]
    ranges = sorted(set(re.findall(r"\[(\w+)(?=[\]:])", expression)))
    for found in ranges:
        shorter = changed_duration(found, 0.1)
        yield "expr", f"[{found}] x 0.1", expression.replace(f"[{found}", f"[{shorter}")
    for match in re.finditer(r"(?<![\w.\[\"])(\d+(?:\.\d+)?)(?![\w.\]\"%])", expression):
        before = expression[: match.start()]
        if before.count('"') % 2 or ("\n" not in before[before.rfind("#") :] and "#" in before):
            continue
        number = float(match[1])
        other = {0.0: (1.0,), 1.0: (2.0,)}.get(number, (number * 0.5, number * 2))
        for value in other:
            changed = f"{before}{value:g}{expression[match.end() :]}"
            line = before.count("\n") + 1
            yield "expr", f"{match[1]} -> {value:g} (line {line})", changed
    for match in re.finditer(r"\b(max|min|sum|count) by \(([\w, ]+)\)", expression):
        line = expression[: match.start()].count("\n") + 1
        operators = {"max": "count", "min": "max", "sum": "min", "count": "max"}
        for replaced in (f"{operators[match[1]]} by ({match[2]})", match[1]):
            changed = f"{expression[: match.start()]}{replaced}{expression[match.end() :]}"
            yield "expr", f"{match[0]} -> {replaced} (line {line})", changed


def mutants() -> Iterator[Mutant]:
    for rules in TEST_FILES:
        text = (ALERTS / "rules" / f"{rules}.yml").read_text()
        n_rules = sum(len(group["rules"]) for group in yaml.safe_load(text)["groups"])
        for index in range(n_rules):
            content = yaml.safe_load(text)
            rule = [rule for group in content["groups"] for rule in group["rules"]][index]
            if rule.get("record") == "server:training_health_rank_number:value":
                continue  # a list of numbers
            name = rule.get("alert") or rule["record"]
            original = dict(rule)
            for key, what, new in changes(original):
                rule.clear()
                rule.update(original)
                rule[key] = new
                yield Mutant(rules, name, what, yaml.safe_dump(content, width=10_000))


def survives(mutant: Mutant, folder: Path) -> bool:
    """Whether all tests pass with the changed rule."""
    promtool = require_tool("promtool")
    (folder / "rules").mkdir(parents=True)
    (folder / "tests").mkdir()
    for path in (ALERTS / "rules").glob("*.yml"):
        (folder / "rules" / path.name).write_text(path.read_text())
    (folder / "rules" / f"{mutant.rules}.yml").write_text(mutant.text)
    for name in TEST_FILES[mutant.rules]:
        test = folder / "tests" / f"{name}.yml"
        test.write_text((ALERTS / "tests" / test.name).read_text())
        done = subprocess.run(
            [promtool, "test", "rules", test], capture_output=True, timeout=120, check=False
        )
        if done.returncode:
            return False
    return True


def test_a_changed_rule_fails_its_tests(tmp_path: Path) -> None:
    all_mutants = [mutant for mutant in mutants() if str(mutant) not in EQUIVALENT]
    assert len(all_mutants) > 150

    with ThreadPoolExecutor(2) as pool:
        alive = pool.map(
            lambda item: survives(item[1], tmp_path / str(item[0])), enumerate(all_mutants)
        )

    survivors = [str(m) for m, survived in zip(all_mutants, alive, strict=True) if survived]
    assert survivors == []
