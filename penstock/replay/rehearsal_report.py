"""The report of a rehearsal, as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .rehearsal import Event, Rehearsal, TaskResult, Verdict, Version, Way
from .rehearsed_slice import RehearsedSlice
from .run_comparison import Comparison
from .shown_records import as_line, as_lines


def differences(directory: Path, old: tuple[str, str], new: tuple[str, str], ignore: Sequence[str] = ()) -> str:
    """Return the differences of two versions on a slice as text, "" if there is none; for the tests of rehearsals.

    directory: of the slice. old, new: ``module:attribute`` and the folder of its module. Raises ConfigError if a
    version cannot run.
    """
    with TemporaryDirectory(prefix="penstock-rehearsal-") as scratch:
        one, other = (Version(topology, Path(path)) for topology, path in (old, new))
        rehearsal = Rehearsal(one, other, tuple(ignore), Path(scratch), lambda _: None)
        (result,) = rehearsal.run([RehearsedSlice.read(directory)])
        return "" if result.verdict is Verdict.EQUAL else "\n".join(lines_of(result))


def lines_of(result: TaskResult) -> Iterator[str]:
    """Yield the report of a task."""
    found = result.comparison
    if result.verdict is Verdict.EQUAL:
        yield f"Task {result.task}: {found.records:,} records, no difference"
        return
    if result.verdict is Verdict.UNSTABLE:
        yield f"Task {result.task}: the old version is not deterministic, two runs of it differ ({_counts(found)})"
    else:
        yield f"Task {result.task}: {found.records:,} records, {_counts(found)}"
    if result.way is not None:
        yield from _way(result.way)
    yield from _examples(found)


def _counts(found: Comparison) -> str:
    parts = [f"{name}: {count}" for name, count in sorted(found.counts.items())]
    return f"differences in {', '.join(parts)}" if parts else "one version fails"


def _way(way: Way) -> Iterator[str]:
    yield from f"The first record that makes a difference: {as_lines(way.record)}".split("\n")
    yield "Its way:"
    for number, (old, new) in enumerate(way.steps):
        if old == new:
            yield f"  {_step(old)}"
            continue
        mark = "   <- the first difference" if way.is_first_difference(number) else ""
        yield f"- {_step(old)}{mark}"
        yield f"+ {_step(new)}"
    for sign, error in zip("-+", way.errors, strict=True):
        if error is not None:
            yield f"{sign} fails: {error}"
    yield f"The node whose results differ: {way.blamed or 'the source, or a punctuation'}"


def _step(event: Event | None) -> str:
    if event is None:
        return "nothing"
    what = f"{event.name} gets" if event.kind == "node" else f"to {event.name}:"
    return f"{what} key {as_line(event.key)}, value {as_line(event.value)}, time {event.timestamp}"


def _examples(found: Comparison) -> Iterator[str]:
    for each in found.sent:
        yield f"{each.topic}, key {as_line(each.key)}, time {each.timestamp}:"
        yield from _both(each.old, each.new)
    for row in found.rows:
        yield f"store {row.store}, row {as_line(row.key)}:"
        yield from _both(row.old, row.new)


def _both(*values: dict[str, object] | None) -> Iterator[str]:
    for sign, value in zip("-+", values, strict=True):
        if value is None:
            yield f"{sign} nothing"
        else:
            yield f"{sign} {as_line(value['value'] if value.keys() == {'value'} else value)}"


def as_plain(result: TaskResult) -> dict[str, Any]:
    """Return the report of a task for JSON."""
    found, way = result.comparison, result.way
    return {
        "task": result.task,
        "verdict": result.verdict.value,
        "records": found.records,
        "differences": dict(found.counts),
        "sent": [asdict(each) for each in found.sent],
        "rows": [asdict(each) for each in found.rows],
        "first": None
        if way is None
        else {
            "record": way.record,
            "node": way.blamed,
            "steps": [[step and asdict(step) for step in pair] for pair in way.steps],
            "errors": list(way.errors),
        },
    }
