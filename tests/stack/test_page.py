"""The page at `/` in a real browser: nothing refused, nothing cut off, in light and dark."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from health_exporter import HealthExporter
from health_exporter.export.endpoint import Endpoint
from health_exporter.export.message import Request, Response
from health_exporter.export.page import HEADERS, status_page
from tests.stack.chromium import Chromium
from tests.unit.export.page_scene import Scene

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium"),
]

LONG = "llama_" + 40 * "x" + "_<script>alert(1)</script>"

Serve = Callable[[str], str]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a document with the page's headers; gives its address."""
    started: list[Endpoint] = []

    def begin(html: str) -> str:
        def answer(request: Request) -> Response:
            return Response(content_type="text/html", body=html.encode(), headers=HEADERS)

        endpoint = Endpoint({"/": answer}, address="127.0.0.1", port=0)
        endpoint.start()
        started.append(endpoint)
        return endpoint.url("/")

    yield begin
    for endpoint in started:
        endpoint.close()


def sick(n_ranks: int = 8, **names: str) -> Scene:
    scene = Scene(n_ranks, **names).train(range(800))
    for step in range(800, 806):
        scene.step(step, math.nan, math.inf)
    return scene.beat(60, silent=[3], where="a/very/long/path/to/some/train.py:42 load_batch")


SCENES = {
    "healthy": lambda: Scene(8).train(range(800)).beat(),
    "sick": sick,
    "starting": lambda: Scene(8).beat(10, absent=[5]),
    "long names": lambda: sick(run=LONG, host=LONG),
    "1,024 ranks": lambda: sick(1_024),
    "failed": lambda: Scene().train(range(9)).end("failed", "E", 300 * "x"),
}


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_is_refused_or_cut_off(browser: Chromium, serve: Serve, name: str, width: int):
    browser.complaints.clear()
    browser.show(serve(status_page(SCENES[name]().view(), "refresh=0")), width)

    assert browser.complaints == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("document.compatMode") == "CSS1Compat"
    assert browser.ask("document.querySelectorAll('script').length") == 0


def test_the_policy_would_stop_what_gets_in(browser: Chromium, serve: Serve):
    """That the tests above would notice."""
    browser.complaints.clear()
    html = Scene().html().replace("</main>", "<script>document.title='run'</script></main>")
    browser.show(serve(html))

    assert browser.ask("document.title") != "run"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


def test_the_verdict_is_the_first_thing_on_a_phone(browser: Chromium, serve: Serve):
    browser.show(serve(sick().html()), 320, 640)

    end = browser.ask("document.querySelector('.verdict li').getBoundingClientRect().bottom")
    assert end < 640


@pytest.mark.parametrize("dark", [False, True])
def test_it_follows_the_readers_colours(browser: Chromium, serve: Serve, dark: bool):
    browser.show(serve(sick().html()), dark=dark)

    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    assert browser.screenshot().startswith(b"\x89PNG")


def test_a_screen_reader_hears_names_and_landmarks(browser: Chromium, serve: Serve):
    browser.show(serve(sick().html()))
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]

    def named(role: str) -> list[str]:
        found = [node for node in nodes if node.get("role", {}).get("value") == role]
        return [node.get("name", {}).get("value", "") for node in found if not node["ignored"]]

    assert len(named("main")) == 1
    assert len(named("banner")) == 1
    assert len(named("navigation")) == 1
    pictures = named("image") + named("img")
    assert len(pictures) >= 7
    assert all(pictures)
    assert any("Not healthy: rank 3" in name for name in named("heading"))
    assert {"rank", "is", "where", "last step"} <= set(named("columnheader"))


def test_keys_reach_every_link(browser: Chromium, serve: Serve):
    browser.show(serve(sick().html()))
    reached = set()
    for _ in range(8):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)
        reached.add(browser.ask("document.activeElement.getAttribute('href')"))

    assert {"/?refresh=0", "/metrics", "/healthz", "/report", "/targets"} <= reached


def test_an_exporter_serves_it(browser: Chromium, tmp_path: Path):
    with HealthExporter(
        run="<b>r</b>", port=0, address="127.0.0.1", receipt_dir=tmp_path, linger_s=0
    ) as exporter:
        for step in range(50):
            exporter.observe_step(step, 2.0 if step < 49 else math.nan, grad_norm=1.0)
        browser.complaints.clear()
        browser.show(f"http://127.0.0.1:{exporter.port}/")
        heading = browser.ask("document.getElementById('verdict').innerText")
        title = browser.ask("document.querySelector('h1').innerText")

    assert browser.complaints == []
    assert "Not healthy: the loss is NaN since step 49" in heading
    assert title.startswith("<b>r</b>")


def test_it_loads_itself_again(browser: Chromium, serve: Serve):
    browser.show(serve(Scene().train(range(9)).html().replace('content="10"', 'content="1"')))

    browser.wait_for("Page.frameStartedNavigating")
