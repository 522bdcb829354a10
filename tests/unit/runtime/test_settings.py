"""Settings: three ways in, their order, and every problem at once."""

from __future__ import annotations

import math
import typing
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from health_exporter import HealthExporterError, SettingsError
from health_exporter.runtime.settings import Settings, SettingsArguments


def resolve(environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    return Settings.resolve(arguments, environ or {})


def problems(environ: dict[str, str] | None = None, **arguments: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        resolve(environ, **arguments)
    assert isinstance(caught.value, HealthExporterError)
    assert isinstance(caught.value, ValueError)
    for problem in caught.value.problems:
        assert problem in str(caught.value)
    return caught.value.problems


def config(folder: Path, text: str) -> dict[str, str]:
    path = folder / "exporter.yaml"
    path.write_text(text, encoding="utf-8")
    return {"HEALTH_EXPORTER_CONFIG": str(path)}


def test_defaults():
    assert resolve(run="r") == Settings(run="r")
    settings = resolve(run="r")
    assert (settings.port, settings.address, settings.receipt_dir) == (
        19400,
        "",
        "./health_receipts",
    )
    assert (settings.linger_s, settings.strict) == (20.0, False)


def test_an_argument_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path):
    environ = {
        **config(tmp_path, "run: file\nport: 1\nlinger_s: 1\nmodel: m\n"),
        "HEALTH_EXPORTER_RUN": "environment",
        "HEALTH_EXPORTER_PORT": "2",
    }
    settings = resolve(environ, run="argument")

    assert (settings.run, settings.port, settings.linger_s, settings.model) == (
        "argument",
        2,
        1.0,
        "m",
    )


def test_every_setting_can_come_from_the_environment():
    texts = {"str": "text", "bool": "true", "int | None": "1", "float": "40", "float | None": "41"}
    texts["bool | None"] = "true"
    environ = {f"HEALTH_EXPORTER_{f.name.upper()}": texts[str(f.type)] for f in fields(Settings)}
    environ["HEALTH_EXPORTER_WORLD_SIZE"] = "2"
    environ["HEALTH_EXPORTER_BEAT_INTERVAL_S"] = "5"
    settings = resolve(environ)

    assert settings.strict is True
    assert settings.run == settings.address == settings.model == "text"
    assert settings.heartbeat_timeout_s == 41.0
    assert type(settings.port) is int


def test_the_arguments_for_type_checkers_are_the_settings():
    assert set(SettingsArguments.__annotations__) == {field.name for field in fields(Settings)}
    hints = typing.get_type_hints(SettingsArguments)
    for name, hint in typing.get_type_hints(Settings).items():
        assert hints[name] == hint or name == "receipt_dir"


@pytest.mark.parametrize("word", ["1", "true", "TRUE", "yes"])
def test_words_for_true(word: str):
    assert resolve({"HEALTH_EXPORTER_STRICT": word}, run="r").strict


@pytest.mark.parametrize("word", ["0", "false", "No"])
def test_words_for_false(word: str):
    assert not resolve({"HEALTH_EXPORTER_STRICT": word}, run="r").strict


def test_none_can_be_said():
    assert resolve(run="r", port=None).port is None
    assert resolve({"HEALTH_EXPORTER_PORT": "none"}, run="r").port is None
    assert resolve({"HEALTH_EXPORTER_HEARTBEAT_TIMEOUT_S": "auto"}, run="r") == Settings(run="r")


def test_an_empty_variable_says_nothing(tmp_path: Path):
    """Templates of containers leave such."""
    environ = {
        **config(tmp_path, "run: file\naddress: 127.0.0.1\n"),
        "HEALTH_EXPORTER_PORT": "",
        "HEALTH_EXPORTER_RUN": "",
        "HEALTH_EXPORTER_ADDRESS": "",
        "HEALTH_EXPORTER_LINGER_S": "",
    }
    settings = resolve(environ)

    assert (settings.run, settings.port, settings.address) == ("file", 19400, "127.0.0.1")
    assert resolve({"HEALTH_EXPORTER_CONFIG": ""}, run="r") == Settings(run="r")


def test_a_path_is_a_folder(tmp_path: Path):
    assert resolve(run="r", receipt_dir=tmp_path).receipt_dir == str(tmp_path)


def test_unknown_names_say_what_was_meant(tmp_path: Path):
    environ = {**config(tmp_path, "receipts_dir: x\n"), "HEALTH_EXPORTER_LINGER": "5"}
    found = problems(environ, run="r", prot=1, zzz=2)

    assert any("prot is not a setting; port may be meant" in p for p in found)
    assert any("HEALTH_EXPORTER_LINGER_S may be meant" in p for p in found)
    assert any("receipt_dir may be meant" in p and "exporter.yaml" in p for p in found)
    assert any("zzz is not a setting" in p and "run, rank" in p for p in found)
    assert len(found) == 4


def test_every_problem_is_reported_at_once():
    found = problems(
        {"HEALTH_EXPORTER_BEAT_INTERVAL_S": "x"},
        rank=-1,
        world_size=0,
        port=70000,
        linger_s=-1,
        strict="perhaps",
        receipt_interval_s=0,
    )
    for text in (
        "HEALTH_EXPORTER_BEAT_INTERVAL_S must be a number of seconds, got 'x'",
        "rank must be >= 0, got -1",
        "world_size must be >= 1, got 0",
        "port must be within 0..65535, got 70000",
        "linger_s must be a finite number >= 0, got -1",
        "strict must be true or false, got 'perhaps'",
        "receipt_interval_s must be a finite number > 0, got 0",
        "run must be given",
    ):
        assert sum(text in problem for problem in found) == 1, text
    assert len(found) == 8


WRONG: list[tuple[str, Any]] = [
    ("run", 5),
    ("run", None),
    ("run", ""),
    ("run", "  "),
    ("run", "a" * 81),
    ("run", "\u00e9" * 41),
    ("run", "a\0b"),
    ("run", "\udcff"),
    ("model", "\udcff"),
    ("rank", 1.0),
    ("rank", True),
    ("rank", "1"),
    ("local_rank", -1),
    ("world_size", "many"),
    ("port", -1),
    ("port", "19400"),
    ("port", 65536),
    ("address", None),
    ("receipt_dir", ""),
    ("receipt_dir", None),
    ("linger_s", math.inf),
    ("linger_s", math.nan),
    ("linger_s", None),
    ("linger_s", "20"),
    ("linger_s", True),
    ("linger_s", 10**400),
    ("beat_timeout_s", math.nan),
    ("beat_timeout_s", 5.0),
    ("beat_interval_s", 31.0),
    ("heartbeat_timeout_s", 0.0),
    ("startup_timeout_s", -math.inf),
    ("strict", 1),
    ("strict", None),
    ("strict", "true"),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: repr(value)[:20])
def test_a_wrong_value_is_one_problem(name: str, value: Any):
    (problem,) = problems(**{"run": "r", name: value})

    assert name in problem
    assert "got" in problem


@pytest.mark.parametrize(
    "text",
    ["1.5", "x", "0x10", "9" * 5000, "1e3"],
    ids=lambda value: value[:8],
)
def test_a_variable_that_is_no_integer(text: str):
    (problem,) = problems({"HEALTH_EXPORTER_RANK": text}, run="r")
    assert problem.startswith("HEALTH_EXPORTER_RANK must be an integer, got ")


@pytest.mark.parametrize("text", ["[1, 2", "a: b: c", "- a\n- b\n", "just text", "\t"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str):
    found = problems(config(tmp_path, text), run="r")

    assert len(found) == 1
    assert "HEALTH_EXPORTER_CONFIG" in found[0]
    assert "exporter.yaml" in found[0]


def test_a_file_that_is_not_there(tmp_path: Path):
    for path in (tmp_path / "none.yaml", tmp_path):
        (problem,) = problems({"HEALTH_EXPORTER_CONFIG": str(path)}, run="r")
        assert str(path) in problem


def test_a_file_in_another_encoding(tmp_path: Path):
    path = tmp_path / "exporter.yaml"
    path.write_bytes(b"run: \xff\xfe\n")
    (problem,) = problems({"HEALTH_EXPORTER_CONFIG": str(path)}, run="r")
    assert str(path) in problem


def test_a_file_runs_no_code(tmp_path: Path):
    text = "run: !!python/object/apply:os.system ['touch /nowhere']\n"
    assert "cannot be read" in problems(config(tmp_path, text))[0]


def test_an_empty_file_says_nothing(tmp_path: Path):
    assert resolve(config(tmp_path, "# nothing\n"), run="r") == Settings(run="r")


def test_types_of_the_file_are_kept(tmp_path: Path):
    assert "run must be a string, got 5" in problems(config(tmp_path, "run: 5\n"))
    assert "linger_s must be a number of seconds, got '20'" in problems(
        config(tmp_path, "run: r\nlinger_s: '20'\n")
    )
    assert resolve(config(tmp_path, "run: r\nport: null\nstrict: yes\n")).port is None


def test_settings_do_not_change():
    with pytest.raises(FrozenInstanceError):
        Settings(run="r").run = "s"  # type: ignore[misc]


def test_other_variables_are_not_read():
    assert resolve({"HEALTH_EXPORTERRUN": "x", "RUN": "y"}, run="r") == Settings(run="r")


def test_what_kubernetes_sets_for_a_service_of_the_same_name_is_no_setting():
    environ = {
        "HEALTH_EXPORTER_PORT": "tcp://10.0.0.7:19400",
        "HEALTH_EXPORTER_SERVICE_HOST": "10.0.0.7",
        "HEALTH_EXPORTER_SERVICE_PORT": "19400",
        "HEALTH_EXPORTER_SERVICE_PORT_METRICS": "19400",
        "HEALTH_EXPORTER_PORT_19400_TCP": "tcp://10.0.0.7:19400",
        "HEALTH_EXPORTER_PORT_19400_TCP_ADDR": "10.0.0.7",
        "HEALTH_EXPORTER_RUN": "r",
    }
    assert Settings.resolve({}, environ) == Settings(run="r")
