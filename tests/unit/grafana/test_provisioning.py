"""The files that Grafana, and the services around it, are started with fit each other."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
import yaml

from tests.unit.grafana.dashboard_file import NAMES, ROOT, load

GRAFANA = ROOT / "grafana"


def content(path: str):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services():
    return content("grafana/compose.yaml")["services"]


def mounts(service: dict) -> dict[PurePosixPath, str]:
    """Path in the container to what is mounted there."""
    pairs = (volume.split(":") for volume in service["volumes"])
    return {PurePosixPath(inside): source for source, inside, *_ in pairs}


def option(service: dict, name: str) -> str:
    [value] = [arg for arg in service["command"] if arg.startswith(f"--{name}=")]
    return str(value.partition("=")[2])


def on_disk(service: dict, inside: str) -> str:
    """What a path in the container is in the repository, relative to grafana/."""
    path = PurePosixPath(inside)
    for mounted, source in mounts(service).items():
        if path == mounted or mounted in path.parents:
            return source + str(path)[len(str(mounted)) :]
    raise AssertionError(f"nothing is mounted at {inside}")


def test_the_data_source_knows_the_scrape_interval():
    [source] = content("grafana/provisioning/datasources/prometheus.yaml")["datasources"]

    assert source["type"] == "prometheus"
    scraped = content("alerts/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_the_data_source_has_no_uid_that_a_dashboard_could_depend_on():
    [source] = content("grafana/provisioning/datasources/prometheus.yaml")["datasources"]

    assert "uid" not in source


@pytest.mark.parametrize("name", ["prometheus", "alertmanager", "grafana"])
def test_images_have_a_version(services, name):
    image, _, version = services[name]["image"].rpartition(":")

    assert image
    assert version[-1].isdigit()


def test_what_is_mounted_from_the_repository_exists(services):
    for service in services.values():
        for source in mounts(service).values():
            if source.startswith("."):
                assert (GRAFANA / source).exists(), source


def test_named_volumes_are_declared(services):
    named = {s for service in services.values() for s in mounts(service).values() if s[0] != "."}

    assert named == set(content("grafana/compose.yaml")["volumes"])


def test_prometheus_finds_its_configuration_and_the_rules(services):
    path = GRAFANA / on_disk(services["prometheus"], option(services["prometheus"], "config.file"))
    rules = yaml.safe_load(path.read_text())["rule_files"]

    assert [found for pattern in rules for found in path.parent.glob(pattern)]


def test_prometheus_tells_the_alertmanager_that_is_started(services):
    [alertmanager] = content("alerts/prometheus.yml")["alerting"]["alertmanagers"]

    assert alertmanager["static_configs"][0]["targets"] == [
        option(services["alertmanager"], "web.listen-address")
    ]


def test_alertmanager_finds_its_configuration_and_the_key(services):
    service = services["alertmanager"]
    path = GRAFANA / on_disk(service, option(service, "config.file"))
    receivers = yaml.safe_load(path.read_text())["receivers"]
    [key_file] = [
        each["routing_key_file"] for r in receivers for each in r.get("pagerduty_configs", [])
    ]

    assert [secret["target"] for secret in service["secrets"]] == [key_file]


def test_grafana_asks_the_prometheus_that_is_started(services):
    [source] = content("grafana/provisioning/datasources/prometheus.yaml")["datasources"]

    assert source["url"] == f"http://{option(services['prometheus'], 'web.listen-address')}"


def test_grafana_finds_the_provisioning_and_the_dashboards(services):
    service = services["grafana"]
    assert on_disk(service, "/etc/grafana/provisioning/datasources") == "./provisioning/datasources"
    [provider] = content("grafana/provisioning/dashboards/training-health.yaml")["providers"]
    folder = GRAFANA / on_disk(service, provider["options"]["path"])

    assert {path.stem for path in folder.glob("*.json")} == set(NAMES)


def test_the_fleet_is_grafanas_home(services):
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert on_disk(services["grafana"], home) == "./dashboards/fleet.json"
    assert load("fleet")["title"] == "Training health: fleet"


def test_nothing_listens_beyond_the_host(services):
    assert all(service["network_mode"] == "host" for service in services.values())
    for name in ("prometheus", "alertmanager"):
        assert option(services[name], "web.listen-address").startswith("127.0.0.1:")
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
