"""The dashboard in a real Chromium: opened, read, used by mouse and by keyboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_stage import Counting, produce, shared_by
from browser import Browser, browser, chromium

from penstock import KafkaStreams, Serdes, StreamsBuilder
from tests.waiting import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(chromium() is None, reason="no Chromium with its chromedriver: the dashboard is not looked at"),
]
TOKEN = "let me in"
ENTER, TAB = "\ue007", "\ue004"
PHONE = (390, 844)


BAD = "bad"


def checked(value: str) -> str:
    if value == BAD:
        raise ValueError("it is bad")
    return value


async def noted(key: str, value: str) -> None:
    await asyncio.sleep(0.01)


class Checking(Counting):
    """Counts what is good; BAD records become dead letters. Each record is noted elsewhere, which takes its time."""

    def topology(self) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream(self.source, key_serde=Serdes.string(), value_serde=Serdes.string())
        stream.foreach_async(noted, name="note")
        counts = stream.map_values(checked, name="check").group_by_key().count(store="counts", name="count")
        counts.to_stream(name="changes").to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
        return builder.build()


@pytest.fixture
def running(counting: Counting, make_topic: Callable[..., str]) -> Iterator[KafkaStreams]:
    checking = Checking(
        counting.bootstrap_servers,
        str(counting.config["application.id"]),
        counting.source,
        counting.sink,
        Path(str(counting.config["state.dir"])),
    )
    checking.config |= {
        "penstock.http.port": 0,
        "penstock.http.token": TOKEN,
        "penstock.memory.bytes": 2 << 30,
        "penstock.metrics.sampling.percent": 10,
        "processing.exception.handler": "log_and_continue",
        "errors.dead.letter.queue.topic.name": make_topic("dead", 1),
    }
    with checking.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        yield streams


@pytest.mark.slow
def test_the_dashboard_shows_the_application_and_controls_it(
    running: KafkaStreams, counting: Counting, tmp_path: Path
) -> None:
    with browser(tmp_path / "profile") as page:
        page.open(f"http://127.0.0.1:{running.http_port}/")
        eventually(lambda: "who have its token" in page.text("#message"), "it asks for the token")
        assert page.run("return document.getElementById('main').hidden") is True
        page.type("#token", TOKEN + ENTER)
        eventually(lambda: page.text("#state") == "RUNNING", "it shows the application")
        looks_at_everything(page, counting)
        looks_at_the_operators(page, counting)
        looks_at_the_functions(page)
        pauses_and_resumes(page, running)
        restarts_by_keyboard(page, running)
        says_what_was_refused(page)
        fits_a_phone(page)
        assert [line for line in page.complaints() if "401" not in line and "409" not in line] == []


def looks_at_everything(page: Browser, counting: Counting) -> None:
    assert page.text("#application") == counting.config["application.id"]
    assert page.run("return document.querySelectorAll('#threads tbody tr').length") == 2
    assert page.run("return document.querySelectorAll('#tasks tbody tr').length") == 8
    hidden = "return ['sinks', 'checkpoints'].map((name) => document.getElementById(`${name}-section`).hidden)"
    assert page.run(hidden) == [True, True], "it has neither"
    eventually(lambda: counting.source[:11] in page.text("#topology"), "the graph is drawn")

    def flow() -> bool:
        """Return whether the arrow shows how many records pass per second: some, while there are new ones."""
        counting.produce(5)
        shown = page.text("#topology .figuretext")
        return "/s ·" in shown and not shown.startswith("0/s")

    eventually(flow, "records flow")


def looks_at_the_operators(page: Browser, counting: Counting) -> None:
    produce(counting.bootstrap_servers, counting.source, BAD)
    eventually(lambda: "check" in page.text("#letters"), "the dead letters' operator is named")
    assert "ValueError" in page.text("#letters")
    assert "(2 GiB)" in page.text("#figures")
    assert " of " in page.text("#threads tbody tr")
    inner = "return edges.get(edgeId('check', 'count')).textContent"

    def seen() -> bool:
        counting.produce(5)
        flows = str(page.run(inner))
        is_hot = all(name in page.text("#hot") for name in ("check", "count"))
        return is_hot and "/s · " in flows and not flows.startswith("0/s")

    eventually(seen, "samples say where the time and the records go, and records flow between operators")


def looks_at_the_functions(page: Browser) -> None:
    cells = "return [...document.querySelectorAll('#functions tbody td')].map((cell) => cell.textContent)"
    eventually(lambda: page.run(cells)[:1] == ["note"], "the function is listed")
    eventually(lambda: page.run(cells)[4].endswith(" ms"), "how long it takes")
    eventually(lambda: page.run(cells)[2:4] == ["0", "0"], "nothing waits any more")


def pauses_and_resumes(page: Browser, streams: KafkaStreams) -> None:
    page.click("#pause")
    page.accept()
    eventually(lambda: streams.is_paused, "it is paused")
    eventually(lambda: page.run("return !document.getElementById('paused').hidden") is True, "the page says so")
    eventually(lambda: page.run("return !document.getElementById('resume').disabled") is True, "it can be resumed")
    page.click("#resume")
    eventually(lambda: not streams.is_paused, "it continues")


def restarts_by_keyboard(page: Browser, streams: KafkaStreams) -> None:
    before = streams.status()[0].pid
    eventually(lambda: page.run("return !document.querySelector('button.restart').disabled") is True, "it can be used")
    page.run("document.getElementById('unlock').focus()")
    for _ in range(10):
        page.press(TAB)
        if page.run("return document.activeElement.getAttribute('aria-label')") == "Restart StreamThread-1":
            break
    page.press(ENTER)
    page.accept()
    eventually(lambda: shared_by(streams, 2) and streams.status()[0].pid != before, "another process has the tasks")
    pid = str(streams.status()[0].pid)
    eventually(lambda: pid in page.text("#threads"), "the page shows the new process")


def says_what_was_refused(page: Browser) -> None:
    """The reason of a refused action stays visible, also after the page has refreshed."""
    page.run("act('/threads/9/restart', document.getElementById('unlock'))")
    eventually(lambda: "does not exist" in page.text("#message"), "it says why")
    seen = page.run("return loadedAt")
    eventually(lambda: float(page.run("return loadedAt")) > float(seen), "it has looked again")
    assert "does not exist" in page.text("#message")


def fits_a_phone(page: Browser) -> None:
    page.show(*PHONE, dark=True)
    middle = """return [...document.querySelectorAll('#topology figure')].map(
        (box) => Math.abs(box.scrollLeft - (box.scrollWidth - box.clientWidth) / 2))"""
    eventually(lambda: max(page.run(middle)) < 2, "what is too wide is seen from its middle")
    assert page.run("const box = document.querySelector('#topology figure'); return box.scrollWidth > box.clientWidth")
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    colors = page.run("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
    text, ground = (sum(map(int, color[4:-1].split(", "))) for color in colors)
    assert text > 500 > 120 > ground  # light upon dark
