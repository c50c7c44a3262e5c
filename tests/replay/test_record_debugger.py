"""The debugger of a record: it stops in the user's function, masks what it shows, and answers `penstock`."""

from __future__ import annotations

import bdb
import io
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Serdes, StreamsBuilder
from penstock.replay.own_code import OwnCode
from penstock.replay.record_debugger import RecordPdb
from penstock.replay.shown_records import RecordCommand, ShownRecords
from penstock.replay.stops import ReplayProgress, run_until
from penstock.topology.records import TopicPartition
from tests.replay.replayed import CONFIG, Input, Replays

OWN = OwnCode.of("tests.replay.test_record_debugger:topology")
IN = TopicPartition("in", 0)
TEXT = Serdes.string()


def add(key: str, value: str, total: int) -> int:
    price = int(value)
    return total + price


def is_new(key: str, value: str) -> bool:
    return value != "old"


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=TEXT, value_serde=TEXT)
    fresh = stream.filter(is_new)
    totals = fresh.group_by_key().aggregate(lambda: 0, add, store="totals", value_serde=Serdes.int64())
    totals.to_stream().to("out", key_serde=TEXT, value_serde=Serdes.int64())
    return builder


class Debugged:
    """The last of some records, debugged with the lines of a user. Returned are the lines of the debugger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *typed: str, mask: Callable[[Any], Any] = lambda value: value, own: OwnCode = OWN) -> list[str]:
        records = Input("in")
        for number, (key, value) in enumerate([("ann", "10"), ("bob", "20"), ("ann", "30")]):
            records.add("in", key, value, number)
        replays = Replays(topology().build(), records, self._folder)
        with replays.replica() as replica:
            run_until(replica, (IN, 2), ReplayProgress(lambda _: None))
            shown = ShownRecords(replica.task, CONFIG, mask)
            self.written = io.StringIO()
            typing = io.StringIO("".join(f"{line}\n" for line in typed))
            self.debugger = RecordPdb(own, mask, RecordCommand(replica, shown), typing, self.written)
            self.sent = [shown.output(each) for each in replica.process_next(self.debugger.run_record)]
        return [line.replace("(Pdb) ", "") for line in self.written.getvalue().splitlines()]


@pytest.fixture
def debugged(tmp_path: Path) -> Debugged:
    bdb.Breakpoint.clearBreakpoints()  # pdb keeps them for all its objects
    return Debugged(tmp_path)


def test_it_stops_at_the_first_line_of_the_first_function(debugged: Debugged) -> None:
    lines = debugged.run("p key, value", "continue")
    assert lines[0].startswith("> ")
    assert lines[0].endswith("is_new()")
    assert lines[1] == '-> return value != "old"'
    assert lines[2] == "('ann', '30')"
    assert [each for each in debugged.sent if each is not None] == [
        {"topic": "out", "timestamp": 2, "key": "ann", "value": 40}
    ]


def test_steps_stop_only_in_the_users_functions(debugged: Debugged) -> None:
    """After the predicate comes the aggregator, with the state before the record."""
    lines = debugged.run("step", "step", "step", "p total", "next", "p price", "args", "continue")
    assert any(line.endswith("add()") for line in lines)
    assert "10" in lines
    assert "30" in lines
    assert "total = 10" in lines


def test_steps_never_stop_in_code_of_others(debugged: Debugged) -> None:
    lines = debugged.run(*["step"] * 12, "continue")
    places = [line for line in lines if line.startswith("> ")]
    assert len(places) > 5
    assert all(__file__ in line for line in places), places


def test_a_breakpoint_of_the_user_is_reached(debugged: Debugged) -> None:
    lines = debugged.run(f"break {__file__}:{add.__code__.co_firstlineno + 2}", "continue", "p price", "continue")
    assert lines[-3:] == ["-> return total + price", "30", ""]


def test_the_command_shows_record_stores_rows_and_sent_records(debugged: Debugged) -> None:
    typed = (
        *("penstock record", "penstock stores", "penstock store totals", "penstock store totals ann"),
        *("penstock store none", "penstock sent", "penstock", "continue"),
    )
    lines = debugged.run(*typed)
    assert lines[2:] == [
        "offset 2 of in-0, 1970-01-01T00:00:00.002+00:00",
        'key: "ann"',
        'value: "30"',
        "totals: timestamped_key_value, about 2 rows",
        '{"key": "ann", "value": 10, "timestamp": 0}',
        '{"key": "bob", "value": 20, "timestamp": 1}',
        '{"key": "ann", "value": 10, "timestamp": 0}',
        "*** The task has no store none; its stores are: totals.",
        "Usage: penstock record | penstock stores | penstock store NAME [KEY] | penstock sent",
        "",
    ]


def test_quit_ends_it_before_the_record_is_processed(debugged: Debugged) -> None:
    with pytest.raises(Exception, match=r"KSTREAM-FILTER"):
        debugged.run("quit")
    assert debugged.debugger.was_quit


def test_without_own_functions_the_record_is_processed_without_a_stop(debugged: Debugged) -> None:
    """As if the topology were of an installed package, whose code is not the user's."""

    class Nothing(OwnCode):
        def has(self, frame: object) -> bool:
            return False

    assert debugged.run("continue", own=Nothing("none")) == []
    assert not debugged.debugger.has_stopped
    assert not debugged.debugger.was_quit
    assert len(debugged.sent) == 2


def hide(value: object) -> object:
    return "***" if isinstance(value, str) else tuple(map(hide, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize(
    "typed",
    [
        "p value",
        "pp value",
        "value",
        "args",
        "display value",
        "p (value, 1)",
        "penstock record",
        "penstock store totals",
    ],
)
def test_a_mask_hides_values_wherever_they_are_shown(debugged: Debugged, typed: str) -> None:
    lines = debugged.run(typed, "continue", mask=hide)
    assert any("***" in line for line in lines[2:]), lines
    assert not any("ann" in line or "30" in line for line in lines[2:] if not line.startswith("offset")), lines


def test_a_mask_hides_what_a_function_returns(debugged: Debugged) -> None:
    lines = debugged.run("return", "retval", "continue", mask=lambda value: f"<{type(value).__name__}>")
    assert any(line.endswith("is_new()->'<bool>'") for line in lines), lines
    assert "'<bool>'" in lines


# -- whose code


def frame_of(path: Path, module: str) -> Any:
    """Return the frame of a function in a file, as a module of this name has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("import sys\ndef own():\n    return sys._getframe()\nframe = own()\n")
    return runpy.run_path(str(path), run_name=module)["frame"]


@pytest.mark.parametrize(
    ("path", "module", "is_own"),
    [
        ("app.py", "app", True),
        ("other.py", "other", True),
        ("site-packages/library.py", "library", False),
        ("site-packages/app/totals.py", "app.totals", True),
        ("penstock/cli/run.py", "penstock.cli.run", False),
    ],
)
def test_the_users_code_is_what_is_not_installed(tmp_path: Path, path: str, module: str, is_own: bool) -> None:
    assert OwnCode.of("app.topologies:topology").has(frame_of(tmp_path / path, module)) is is_own


def test_pythons_library_is_not_the_users_code() -> None:
    seen = []

    class Frames(json.JSONEncoder):
        def default(self, o: object) -> str:
            import sys

            seen.append(OWN.has(sys._getframe(1)))
            return ""

    json.dumps(object(), cls=Frames, indent=1)
    assert seen == [False]
