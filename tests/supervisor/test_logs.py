"""The format of log lines, and that related lines stay together."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import pytest
from stage import Conductor, LogLines, MakeApplication

from penstock.clients.librdkafka.making import CLIENT_LOGGER
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.logs.formats import formatter, is_the_journal, syslog_priority
from penstock.supervisor.logs.log_floods import LIBRDKAFKA, QUIET_SECONDS, FloodFilter, FloodGate
from penstock.supervisor.logs.text_blocks import BLOCK_LINES_MAX, TextBlocks
from penstock.supervisor.logs.worker_logging import PipeLogHandler
from penstock.supervisor.logs.worker_output import LINE_BYTES_MAX, BlockReader, LineReader

ROOT = Path(__file__).resolve().parent.parent.parent
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nZeroDivisionError: by zero'


def record(message: str, *arguments: object, name: str = "user", level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord(name, level, "a.py", 1, message, arguments, None)


def failed() -> logging.LogRecord:
    """Return a record with a traceback."""
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        return logging.LogRecord("user", logging.ERROR, "a.py", 1, "no %s", ("luck",), sys.exc_info())


# -- formats


def test_json_is_one_object_in_one_line() -> None:
    json_format = formatter("json", {"application": "delays"}, io.StringIO(), {})
    text = json_format.format(failed())
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["level"], line["application"]) == ("no luck", "ERROR", "delays")
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ZeroDivisionError: by zero")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert "exception" not in json.loads(json_format.format(record("fine")))


def test_a_workers_traceback_is_separate_from_its_message() -> None:
    prepared = PipeLogHandler(cast("Any", None)).prepare(failed())
    line = json.loads(formatter("json", {}, io.StringIO(), {}).format(prepared))
    assert line["message"] == "no luck"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert formatter("plain", {}, io.StringIO(), {}).format(prepared).count("Traceback") == 1


def test_the_journal_gets_a_priority_on_each_line() -> None:
    lines = formatter("journal", {}, io.StringIO(), {}).format(failed()).splitlines()
    assert lines[0] == "<3>no luck (user)"
    assert len(lines) > 2
    assert all(line.startswith("<3>") for line in lines)
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 5)
    assert [syslog_priority(level) for level in levels] == [2, 3, 4, 6, 7, 7]


def test_the_journal_is_detected_by_its_stream(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as stream:
        found = os.fstat(stream.fileno())
        ours = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_the_journal(stream, ours)
        assert not is_the_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        assert not is_the_journal(stream, {})  # e.g. `systemctl`'s shell, or stderr redirected to a file
        assert formatter("auto", {}, stream, ours).format(record("x")) == "<3>x (user)"
        assert formatter("auto", {}, stream, {}).format(record("x")).endswith(" ERROR   x (user)")
    assert not is_the_journal(io.StringIO(), ours)


@pytest.mark.parametrize("wanted", ["json", "journal"])
def test_all_output_of_a_failing_application_has_the_format(tmp_path: Path, wanted: str) -> None:
    """The supervisor's lines, those of its processes, their stderr, and the final error."""
    (tmp_path / "bad.py").write_text(
        "import sys, traceback\n"
        "def topology():\n"
        f"    print({TRACEBACK!r}, file=sys.stderr)\n"
        "    raise KeyError('no such thing')\n"
    )
    settings = {"application.id": "a", "bootstrap.servers": "nowhere:1", "state.dir": str(tmp_path / "state")}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "run", "bad:topology", *options, "-c", f"penstock.log.format={wanted}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.TOPOLOGY
    lines = done.stderr.splitlines()
    if wanted == "journal":
        assert all(re.match(r"<[234567]>", line) for line in lines), done.stderr
        assert lines[-1].startswith("<3>Error: TopologyLoadError: bad:topology cannot be loaded: KeyError")
    else:
        records = [json.loads(line) for line in lines]
        assert "KeyError" in records[-1]["message"]
        assert any(r["message"].endswith(TRACEBACK) for r in records), done.stderr


# -- blocks of lines


@pytest.fixture
def blocks() -> Iterator[tuple[Any, BlockReader, list[str]]]:
    """The writing end of a pipe, its reader, and the blocks it read."""
    receiving, sending = Pipe(duplex=False)
    texts: list[str] = []
    reader = BlockReader(receiving, texts.append)
    yield sending, reader, texts
    reader.close()
    sending.close()


def test_a_traceback_is_one_block_however_it_arrives(blocks: tuple[Any, BlockReader, list[str]]) -> None:
    sending, reader, texts = blocks
    for piece in re.findall(r"(?s).{1,7}", f"before\n{TRACEBACK}\nafter\n"):
        os.write(sending.fileno(), piece.encode())
        assert reader.read()
    assert texts == ["before", TRACEBACK, "after"]


def test_chained_tracebacks_and_warnings_stay_together() -> None:
    blocks = TextBlocks()
    chain = f"{TRACEBACK}\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}"
    found = [blocks.add(line) for line in (*chain.splitlines(), "a.py:1: UserWarning: old", "  old()", "next")]
    assert [block for block in (*found, blocks.pause()) if block] == [
        chain,
        "a.py:1: UserWarning: old\n  old()",
        "next",
    ]


def test_the_interpreters_final_lines_are_held_until_the_end(blocks: tuple[Any, BlockReader, list[str]]) -> None:
    sending, reader, texts = blocks
    words = (
        'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "a.py", line 1\n\nThread 0x2:\n'
    )
    os.write(sending.fileno(), words.encode())
    reader.read()
    assert not texts
    sending.close()
    assert not reader.read()
    assert texts == [words.rstrip("\n")]


def test_an_endless_block_does_not_fill_the_memory(blocks: tuple[Any, BlockReader, list[str]]) -> None:
    lines = TextBlocks()
    lines.add("Fatal Python error: it never ends")
    assert sum(lines.add("x") is not None for _ in range(BLOCK_LINES_MAX * 2)) > 0
    sending, reader, texts = blocks
    for _ in range(LINE_BYTES_MAX // 4096 + 1):
        os.write(sending.fileno(), b"x" * 4096)
        reader.read()
    assert len(texts) == 1
    assert len(texts[0]) > LINE_BYTES_MAX


def test_results_on_stdout_are_not_delayed() -> None:
    receiving, sending = Pipe(duplex=False)
    lines: list[str] = []
    reader = LineReader(receiving, lines.append)
    os.write(sending.fileno(), f"{TRACEBACK}\n".encode())
    reader.read()
    assert lines == TRACEBACK.splitlines()
    reader.close()
    sending.close()


def test_tracebacks_of_two_processes_do_not_mix(
    application: MakeApplication, conductor: Conductor, log: LogLines, caplog: pytest.LogCaptureFixture
) -> None:
    app = application(2)
    workers = conductor.running(2)
    for number in range(20):
        for worker in workers:
            worker.order("print", stdout="", stderr=f"{TRACEBACK} {worker.slot}-{number}\n")
    for worker in workers:
        log.wait_for(f"{TRACEBACK} {worker.slot}-19")
    app.supervisor.shut_down()
    assert app.ends() == ExitCode.OK
    texts = [r.getMessage() for r in caplog.records if r.name == "penstock.supervisor.stderr"]
    assert sorted(texts) == sorted(
        f"stream-thread [{worker.name}] stderr: {TRACEBACK} {worker.slot}-{number}"
        for worker in workers
        for number in range(20)
    )


# -- floods


def refused(broker: str, client: str, took_ms: int) -> logging.LogRecord:
    """Return one of librdkafka's lines, as its client's logger receives it."""
    text = (
        f"[thrd:{broker}/bootstrap]: {broker}/bootstrap: Connect to ipv4#{broker} failed: Connection refused "
        f"(after {took_ms}ms in state CONNECT)"
    )
    return record("%s [%s] %s", "FAIL", client, text, name=LIBRDKAFKA)


def test_a_repeated_refusal_is_one_line_and_then_a_count() -> None:
    now = 0.0
    gate = FloodGate(lambda: now)
    assert gate.admits(refused("a:1", "one#consumer-1", 0))
    assert gate.admits(refused("b:1", "one#consumer-1", 0))  # another broker
    more = [gate.admits(refused("a:1", f"two#producer-{n}", n)) for n in range(117)]
    suppressed = refused("a:1", "one#consumer-1", 0)
    text = suppressed.getMessage().replace("CONNECT)", "CONNECT, 30 identical error(s) suppressed)")
    more.append(gate.admits(record(text, name=LIBRDKAFKA)))
    assert not any(more)
    now = QUIET_SECONDS
    again = refused("a:1", "one#consumer-1", 3)
    assert gate.admits(again)
    assert again.getMessage().endswith("CONNECT) (and 118 more like it in the last 60 s)")
    now = 2 * QUIET_SECONDS
    alone = refused("a:1", "one#consumer-1", 3)
    assert gate.admits(alone)
    assert "more like it" not in alone.getMessage()


def test_lines_caused_by_clients_are_one_line_for_any_input() -> None:
    assert CLIENT_LOGGER.name == LIBRDKAFKA
    ours, foreign = FloodFilter(), FloodFilter("penstock-http")
    for number in range(3):
        first = number == 0
        assert ours.filter(record("GET %s failed", f"/{'x' * number}", name="penstock.http")) is first
        assert ours.filter(record("another line", name="penstock.http")) is first
        lost = record(f"Fatal error on transport\nfd={number} raddr=('10.0.0.{number}', {number})", name="asyncio")
        assert foreign.filter(lost)  # of another server in the user's program
        lost.threadName = "penstock-http"
        assert foreign.filter(lost) is first


def test_many_different_lines_do_not_fill_the_memory() -> None:
    gate = FloodGate(lambda: 0.0)
    assert all(gate.admits(refused(f"broker-{number}:1", "one", 0)) for number in range(10_000))
    assert len(gate._said) <= 256
