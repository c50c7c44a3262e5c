"""The contents of records reach no terminal as control characters or markup, in any command."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.statestore.view.spelling import printable, printable_lines
from tests.command_stage import Stage
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parent.parent
#: Sets a title, moves the cursor, rings the bell, reverses text, and is markup for rich.
NASTY = "\u001b]0;title\u0007\u007f\u009b2J\r\u202e[bold]x[/]:smile:"
SPELLED = "\\u001b]0;title\\u0007\\u007f\\u009b2J\\u000d\\u202e[bold]x[/]:smile:"
#: The escape sequences that rich sends to a terminal: colors only.
COLORS = re.compile(r"\x1b\[[0-9;]*m")
APP = """\
from penstock import Serdes, StreamsBuilder

def check(value):
    if value == "bad":
        raise ValueError(f"the value is {NASTY!s}")
    return value

def topology():
    builder = StreamsBuilder()
    words = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    words.map_values(check).group_by_key(key_serde=Serdes.string(), value_serde=Serdes.string()).reduce(
        lambda old, new: new, store="last"
    )
    return builder.build()

NASTY = @NASTY@
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    stage = Stage(folder, bootstrap_servers, APP.replace("@NASTY@", ascii(NASTY)))
    dead = f"{stage.application_id}.dead"
    stage.configure({"errors.dead.letter.queue.topic.name": dead, "processing.exception.handler": "log_and_continue"})
    stage.make_topics(stage.source, dead)
    try:
        stage.start()
        stage.produce((NASTY, NASTY), (NASTY, "bad"))
        eventually(lambda: len(stage.json("dlq", "list")) == 1)
        eventually(lambda: stage.run("state", "get", "last", NASTY, "--json").exit_code == 0)
        yield stage
    finally:
        stage.stop()
        stage.delete_topics()


def on_a_terminal(stage: Stage, *arguments: str) -> str:
    """Return a command's output on a terminal, without line ends, tabs and colors."""
    ours, theirs = pty.openpty()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_CONFIG": str(stage.config_file),
        "TERM": "xterm",
        "COLUMNS": "200",
    }
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    done = subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, timeout=PATIENCE_SECONDS, check=False)
    os.close(theirs)
    shown = b""
    try:
        while read := os.read(ours, 100_000):
            shown += read
    except OSError:  # the end
        pass
    os.close(ours)
    assert done.returncode in (0, 1), shown
    return COLORS.sub("", shown.decode().replace("\r\n", "\n"))


@pytest.mark.broker
@pytest.mark.parametrize(
    "command",
    [
        "state get last KEY",
        "state get last MISSING",
        "state range last",
        "state range last --json",
        "state export last",
        "dlq list",
        "dlq show LETTER",
        "dlq show LETTER --json",
        "dlq list --json",
        "topic consume SOURCE --value-serde string",
        "topic consume SOURCE --value-serde string --json",
        "status",
        "top -n 1",
    ],
)
def test_a_command_shows_records_without_control_sequences(stage: Stage, command: str) -> None:
    letter = stage.json("dlq", "list")[0]["letter"]
    words = {"KEY": NASTY, "MISSING": f"{NASTY}!", "LETTER": letter, "SOURCE": stage.source}
    shown = on_a_terminal(stage, *(words.get(word, word) for word in command.split()))
    if command == "top -n 1":
        shown = re.sub(r"\x1b\[(\?\d+[hl]|\d*;?\d*H|2J)", "", shown)  # the screen that it draws
    left = {character for character in shown if not character.isprintable() and character not in "\n\t"}
    assert not left, (left, shown)
    if command not in ("status", "top -n 1"):
        assert "title" in shown or "0x1b5d303b" in shown  # dead letters are shown as escaped bytes


@pytest.mark.broker
def test_a_table_shows_markup_as_it_is(stage: Stage) -> None:
    shown = on_a_terminal(stage, "state", "get", "last", NASTY)
    assert shown.count(SPELLED) == 2


@pytest.mark.broker
def test_the_log_has_no_control_characters(stage: Stage) -> None:
    log = (stage.folder / "log").read_text()
    assert "ValueError: the value is " + SPELLED in log
    assert printable_lines(log) == log


def test_characters_are_escaped_as_in_json() -> None:
    assert printable("plain ☃ 😀") == "plain ☃ 😀"
    for text in (NASTY, "\n\t\x00\x7f", "\U000e0001", "\u2028"):
        assert printable(text).isprintable()
        assert json.loads(f'"{printable(text)}"') == text
    assert printable_lines("a\tb\n\x1b") == "a\tb\n\\u001b"
