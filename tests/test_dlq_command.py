"""penstock dlq, on dead letters of a real application."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from penstock.cli.dead_letters import Choice, DeadLetters
from penstock.supervisor.source.config_loader import load_config
from penstock.topology.errors import StreamsError
from tests.command_stage import Stage
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
APP = """\
import os
from penstock import Serdes, StreamsBuilder

def number(value):
    return str(int(value)) if os.path.exists("FIXED") or value.isdecimal() else str(1 // 0)

def topology():
    builder = StreamsBuilder()
    texts = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    texts.map_values(number, name="number").to(
        "@SINK@", key_serde=Serdes.string(), value_serde=Serdes.string()
    )
    return builder.build()
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    stage = Stage(folder, bootstrap_servers, APP.replace("FIXED", str(folder / "fixed")))
    stage.configure(
        {
            "errors.dead.letter.queue.topic.name": f"{stage.application_id}.dead",
            "processing.exception.handler": "log_and_continue",
        }
    )
    stage.make_topics(stage.source, stage.sink, f"{stage.application_id}.dead")
    try:
        stage.start()
        stage.produce(("good", "7"), ("minus", "-1"), ("other", " 5"))
        eventually(lambda: len(stage.json("dlq", "list")) == 2)
        yield stage
    finally:
        stage.stop()
        stage.delete_topics()


def values(stage: Stage, topic: str) -> list[str]:
    """Return the committed values of a topic."""
    return sorted((message.value() or b"").decode() for message in read_to_end(stage.bootstrap_servers, topic))


def test_letters_are_listed_and_shown(stage: Stage) -> None:
    rows = {row["key"]: row for row in stage.json("dlq", "list")}
    assert set(rows) == {"minus", "other"}
    assert rows["minus"]["exception"].endswith("ZeroDivisionError")
    assert rows["minus"]["source"].startswith(f"{stage.source}-")
    assert not rows["minus"]["replayed"]
    listed = stage.run("dlq", "list")
    assert len([line for line in listed.stdout.splitlines() if "ZeroDivisionError" in line]) == 2
    assert max(len(line) for line in listed.stdout.splitlines()) <= 80
    assert stage.json("dlq", "list", "--exception", "KeyError") == []
    assert len(stage.json("dlq", "list", "--source", stage.source, "--since", "1h", "--message", "division")) == 2

    shown = stage.run("dlq", "show", rows["minus"]["letter"])
    assert "value:     -1\n" in shown.stdout
    assert "Traceback (most recent call last)" in shown.stdout
    assert stage.run("dlq", "show", "0:99").exit_code == 1
    assert stage.run("dlq", "show", "first").exit_code == 2


def another_letter_of_each_record(stage: Stage) -> None:
    """Write the dead letters again, as an application does that processes the records again after a crash."""
    topic = f"{stage.application_id}.dead"
    letters = list(DeadLetters(load_config(stage.config_file, {}, ())).letters())
    producer = Producer({"bootstrap.servers": stage.bootstrap_servers})
    for letter in letters:
        producer.produce(topic, letter.value, letter.key, headers=[*letter.headers], timestamp=letter.timestamp)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert len(stage.json("dlq", "list")) == 2 * len(letters)


def test_each_record_is_replayed_once(stage: Stage) -> None:
    letter = next(row["letter"] for row in stage.json("dlq", "list") if row["key"] == "minus")
    (stage.folder / "fixed").touch()
    dry = stage.run("dlq", "replay", letter)
    assert dry.stdout.startswith("Dry run: nothing is written. Add --execute to replay these.\n")
    assert values(stage, stage.source) == sorted(["7", "-1", " 5"])

    assert [row["letter"] for row in stage.json("dlq", "replay", letter, "--execute")["letters"]] == [letter]
    assert values(stage, stage.source) == sorted(["7", "-1", "-1", " 5"])
    eventually(
        lambda: values(stage, stage.sink) == sorted(["7", "-1"]),
        lambda: (values(stage, stage.sink), stage.run("dlq", "list").output),
    )
    assert stage.run("dlq", "replay", letter, "--execute").stdout == "0 letters replayed.\n"
    assert {row["key"]: row["replayed"] for row in stage.json("dlq", "list")} == {"minus": True, "other": False}

    another_letter_of_each_record(stage)
    assert [row["replayed"] for row in stage.json("dlq", "list") if row["key"] == "minus"] == [True, True]
    assert len(stage.json("dlq", "replay", "--all", "--execute")["letters"]) == 1
    assert stage.json("dlq", "replay", "--all", "--execute")["letters"] == []
    assert values(stage, stage.source) == sorted(["7", "-1", "-1", " 5", " 5"])
    eventually(lambda: values(stage, stage.sink) == sorted(["7", "-1", "5"]))
    assert stage.run("dlq", "replay").exit_code == 2


def test_a_letter_without_key_and_value_is_not_replayed(stage: Stage) -> None:
    """It would be replayed as a tombstone without a key."""
    place = {"topic": stage.source, "partition": "0", "offset": "0"}
    headers: dict[str, str | bytes | None] = {f"__streams.errors.{name}": text for name, text in place.items()}
    producer = Producer({"bootstrap.servers": stage.bootstrap_servers})
    producer.produce(f"{stage.application_id}.dead", None, None, headers=headers, timestamp=7)
    assert producer.flush(PATIENCE_SECONDS) == 0
    before = len(values(stage, stage.source))
    (letter,) = [row["letter"] for row in stage.json("dlq", "list") if row["key"] is None]
    said = stage.run("dlq", "replay", letter, "--execute").stdout
    assert said.endswith(
        f"0 letters replayed.\nCannot be replayed, because they have no source, or no key and value: {letter}.\n"
    )
    assert len(values(stage, stage.source)) == before


def test_a_record_of_1970_is_replayed_with_its_timestamp(stage: Stage) -> None:
    """librdkafka replaces the timestamp 0 by the current time, which is another window."""
    place = {"topic": stage.source, "partition": "0", "offset": "1", "timestamp": "0"}
    producer = Producer({"bootstrap.servers": stage.bootstrap_servers})
    headers: dict[str, str | bytes | None] = {f"__streams.errors.{name}": text for name, text in place.items()}
    producer.produce(f"{stage.application_id}.dead", b"1", b"epoch", headers=headers)
    assert producer.flush(PATIENCE_SECONDS) == 0
    (letter,) = [row["letter"] for row in stage.json("dlq", "list") if row["key"] == "epoch"]
    assert stage.run("dlq", "replay", letter, "--execute").stdout.endswith("1 letter replayed.\n")
    records = read_to_end(stage.bootstrap_servers, stage.source)
    assert [record.timestamp()[1] for record in records if record.key() == b"epoch"] == [0]


def test_a_letter_that_does_not_exist_is_an_error(stage: Stage) -> None:
    """Also if other letters of the command exist; nothing is replayed then."""
    letter = stage.json("dlq", "list")[0]["letter"]
    for options in ((), ("--execute",)):
        result = stage.run("dlq", "replay", letter, "0:999999", *options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"There is no letter 0:999999 in {stage.application_id}.dead" in result.stderr


def test_a_replay_overtaken_by_another_writes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage.folder / "fixed").unlink(missing_ok=True)
    before = len(stage.json("dlq", "list"))
    stage.produce(("late", "-3"))
    eventually(lambda: len(stage.json("dlq", "list")) == before + 1)
    late = next(row["letter"] for row in stage.json("dlq", "list") if row["key"] == "late")
    config = load_config(stage.config_file, {}, ())
    slow, choice = DeadLetters(config), DeadLetters.waiting

    def overtaken(letters: DeadLetters, wanted: object) -> object:
        found = choice(letters, wanted)  # type: ignore[arg-type]
        if letters is slow:
            assert len(stage.json("dlq", "replay", late, "--execute")["letters"]) == 1
        return found

    monkeypatch.setattr(DeadLetters, "waiting", overtaken)

    with pytest.raises(StreamsError, match="The replay has stopped: another replay has taken over"):
        slow.replay(Choice())
    assert values(stage, stage.source).count("-3") == 2


def test_one_of_several_concurrent_replays_succeeds_and_the_others_say_why_not(stage: Stage) -> None:
    (stage.folder / "fixed").unlink(missing_ok=True)
    before = len(stage.json("dlq", "list"))
    stage.produce(*((f"both-{number}", f"-{number}") for number in range(40, 60)))
    eventually(lambda: len(stage.json("dlq", "list")) == before + 20)
    (stage.folder / "fixed").touch()  # the replayed records cause no new dead letters
    command = [sys.executable, "-m", "penstock.cli", "dlq", "replay", "--all", "--execute"]
    environment = {**os.environ, "PENSTOCK_CONFIG": str(stage.config_file)}
    replays = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ends = [(*replay.communicate(timeout=PATIENCE_SECONDS), replay.returncode) for replay in replays]
    found = values(stage, stage.source)
    assert [found.count(f"-{number}") for number in range(40, 60)] == [2] * 20, ends
    assert 0 in [code for *_, code in ends]
    for _, errors, code in ends:
        if code != 0:
            assert errors.startswith("Error: The replay has stopped: another replay has taken over."), ends
            assert len(errors.splitlines()) == 1, ends
