"""The dashboard's panels of sinks and checkpoints in a real Chromium: light, dark, and on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_stage import PARTITIONS, Counting, shared_by
from browser import Browser, browser, chromium
from test_http_dashboard import PHONE

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.sinks import SqliteSink
from tests.waiting import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium with its chromedriver: the dashboard is not looked at"),
]
SINK = "rows-sink"
DESK = (1100, 1200)


class Sinking(Counting):
    """Counts records, and writes the good ones of another topic to a table. database: its file."""

    def __init__(self, counting: Counting, other: str, folder: Path) -> None:
        config = counting.config
        super().__init__(
            counting.bootstrap_servers,
            str(config["application.id"]),
            counting.source,
            counting.sink,
            Path(str(config["state.dir"])),
        )
        self._other, self._database = other, folder / "rows.db"
        self.config |= {
            "penstock.http.port": 0,
            "penstock.checkpoint.uri": f"file://{folder}/bucket",
            "penstock.checkpoint.interval.ms": 500,
        }

    def topology(self) -> Any:
        builder = StreamsBuilder()
        text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
        counts = builder.stream(self.source, **text).group_by_key().count(store="counts")
        counts.to_stream().to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
        builder.stream(self._other, **text).to_sink(SqliteSink(self._database, "rows", key="key"), name=SINK)
        return builder.build()

    def produce_both(self, rounds: int) -> None:
        """Write records of each key to both topics."""
        for topic in (self.source, self._other):
            self.source, before = topic, self.source
            try:
                self.produce(rounds)
            finally:
                self.source = before


@pytest.fixture
def sinking(counting: Counting, make_topic: Callable[..., str], tmp_path: Path) -> Sinking:
    return Sinking(counting, make_topic("other", 2), tmp_path)


@pytest.fixture
def running(sinking: Sinking) -> Iterator[KafkaStreams]:
    with sinking.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2, PARTITIONS + 2), "two threads share the tasks")
        yield streams


def test_sinks_and_checkpoints_have_panels(running: KafkaStreams, sinking: Sinking, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page:
        page.show(*DESK)
        page.open(f"http://127.0.0.1:{running.http_port}/")
        eventually(lambda: page.text("#state") == "RUNNING", "it shows the application")
        looks_at_the_sinks(page, sinking)
        looks_at_the_checkpoints(page, sinking)
        page.screenshot(tmp_path / "light.png")
        page.show(*DESK, dark=True)
        page.screenshot(tmp_path / "dark.png")
        page.show(*PHONE)
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
        labels = "return [...document.querySelectorAll('#sinks tr:first-child td')].map((cell) => cell.dataset.label)"
        assert page.run(labels) == ["Sink", "Task", "Input", "Lag", "Rows/s", "Batch", "Retries"]
        page.run("document.getElementById('sinks-section').scrollIntoView()")
        page.screenshot(tmp_path / "phone.png")
        assert page.complaints() == []


def cells(page: Browser, table: str) -> list[list[str]]:
    """Return the text of a table's cells."""
    script = """return [...document.querySelectorAll(arguments[0])].map(
        (row) => [...row.cells].map((cell) => cell.textContent))"""
    found: list[list[str]] = page.run(script, f"#{table} tbody tr")
    return found


def looks_at_the_sinks(page: Browser, sinking: Sinking) -> None:
    eventually(lambda: len(cells(page, "sinks")) == 2, "each task of the sink has a row")

    def are_written() -> bool:
        sinking.produce_both(5)
        rows = cells(page, "sinks")
        return all(row[4] != "0" and row[5] != "0 µs" for row in rows)

    eventually(are_written, lambda: cells(page, "sinks"))
    assert [row[0] for row in cells(page, "sinks")] == [SINK, SINK]
    assert [row[2].rpartition("-")[2] for row in cells(page, "sinks")] == ["0", "1"]
    eventually(lambda: [row[3] for row in cells(page, "sinks")] == ["0", "0"], "nothing is missing in the table")
    assert page.run("return document.getElementById('functions-section').hidden"), "a sink is in one panel only"
    assert page.text("#sinks-count") == "2"


def looks_at_the_checkpoints(page: Browser, sinking: Sinking) -> None:
    eventually(lambda: len(cells(page, "checkpoints")) == PARTITIONS, "tasks with a store have rows, and no others")

    def are_uploaded() -> bool:
        sinking.produce_both(1)
        return all("MiB" in row[2] for row in cells(page, "checkpoints"))

    eventually(are_uploaded, lambda: cells(page, "checkpoints"))
    row = cells(page, "checkpoints")[0]
    assert row[1] != "none yet"
    assert row[3].endswith("s")
    assert row[4] == "0"
    assert page.run("return [...document.querySelectorAll('#checkpoints progress')].every((bar) => bar.hidden)")
    loading = """return (async () => {
        const found = await (await fetch('/dashboard.json')).json();
        const threads = found.status.threads;
        const task = threads.flatMap((thread) => thread.tasks).find((task) => task.checkpoint);
        Object.assign(task.checkpoint, {uploads: 0, loading_bytes: 3 * 2 ** 20, loading_total_bytes: 9 * 2 ** 20});
        showCheckpoints(threads);
        const bar = [...document.querySelectorAll('#checkpoints progress')].find((bar) => !bar.hidden);
        const cells = bar.closest('tr').cells;
        return [cells[1].textContent, cells[5].textContent, bar.position];
    })()"""
    assert page.run(loading) == ["none yet", " 3 MiB of 9 MiB", pytest.approx(1 / 3)]
