"""Offsets in a database: penstock reset shows and deletes them, and a topic that is created again ends them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.command_stage import PARTITIONS, Stage, running
from tests.topics import delete_topics
from tests.waiting import eventually

pytestmark = pytest.mark.broker
RECORDS = 20
APP = """\
from penstock import Serdes, StreamsBuilder
from penstock.sinks import SqliteSink

def topology():
    builder = StreamsBuilder()
    words = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    words.to_sink(SqliteSink("@DATABASE@", "words", key="key"), name="words-sink")
    return builder.build()
"""


def rows(path: Path) -> int:
    """Return how many rows there are, 0 without the table."""
    connection = sqlite3.connect(path)
    try:
        ((count,),) = connection.execute("SELECT count(*) FROM words")
        return int(count)
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def produce(stage: Stage, path: Path, expected: int) -> None:
    stage.produce(*((f"k{number}", "x") for number in range(RECORDS)))
    eventually(lambda: rows(path) >= expected, lambda: f"{rows(path)} of {expected} rows are written")


def test_reset_keeps_the_offsets_in_a_sink_unless_it_is_asked_to(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "words.db"
    static = {"penstock_static_membership": False}
    with running(tmp_path, bootstrap_servers, APP.replace("@DATABASE@", str(path)), **static) as stage:
        produce(stage, path, RECORDS)
        stage.stop()
        kept = stage.json("reset", stage.topology, "--execute", "--wait", "60")["sinks"]
        assert sum(row["offset"] for row in kept) == RECORDS
        assert {(row["sink"], row["topic"], row["deleted"]) for row in kept} == {("words-sink", stage.source, False)}
        assert "kept, as --sinks is not given" in stage.run("reset", stage.topology).stdout
        stage.start()
        produce(stage, path, 2 * RECORDS)
        stage.stop()
        assert rows(path) == 2 * RECORDS  # not again, although the group began at 0
        assert len(stage.json("reset", stage.topology, "--sinks", "--execute", "--wait", "60")["sinks"]) == PARTITIONS
        assert stage.json("reset", stage.topology)["sinks"] == []
        stage.start()
        eventually(lambda: rows(path) >= 4 * RECORDS, "all records are written again")
        stage.stop()
        assert rows(path) == 4 * RECORDS


def test_a_topic_that_was_created_again_is_an_error(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "words.db"
    with running(tmp_path, bootstrap_servers, APP.replace("@DATABASE@", str(path))) as stage:
        produce(stage, path, RECORDS)
        stage.stop()
        delete_topics(stage.admin, stage.source)
        stage.make_topics(stage.source)
        with pytest.raises(AssertionError, match=f"but the topic {stage.source} was deleted and created again"):
            stage.start()  # with the log
        stage.configure({"penstock.lost.offsets": "accept"})
        stage.start()
        produce(stage, path, 2 * RECORDS)
        stage.stop()
        assert rows(path) == 2 * RECORDS
