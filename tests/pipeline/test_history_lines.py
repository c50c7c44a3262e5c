"""Lines of JSON as history: what becomes a record, and what the error for another line names."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from penstock import Serdes
from penstock.pipeline.queries.history_files import _reader_of_lines
from penstock.topology.errors import StreamsError
from penstock.workers.queries.record_lines import TopicSerdes

SERDES = {"in": TopicSerdes(Serdes.string(), Serdes.int64())}
PLACE = {"topic": "in", "partition": 1, "offset": 7, "timestamp": 0}


def read(*lines: str) -> list[dict[str, object]]:
    batch = pa.RecordBatch.from_pydict({"value": list(lines), "file_path": ["file:/history.jsonl"] * len(lines)})
    return [record for found in _reader_of_lines(SERDES)([batch]) for record in found.to_pylist()]


def test_a_line_has_the_bytes_of_the_serdes_and_its_place() -> None:
    line = json.dumps({**PLACE, "key": "a", "value": 3, "headers": [["trace", "7"]]})
    assert read(line, "", "  ") == [
        {**PLACE, "key": b"a", "value": bytes(7) + b"\x03", "headers": [{"key": "trace", "value": b"7"}]}
    ]


def test_a_line_may_have_a_null_key_and_a_value_as_hexadecimal_bytes() -> None:
    (found,) = read(json.dumps({**PLACE, "key": None, "value": 3, "value_bytes": "00ff"}))
    assert (found["key"], found["value"], found["headers"]) == (None, b"\x00\xff", None)


def test_lines_of_other_topics_are_skipped_whatever_they_hold() -> None:
    assert read(json.dumps({**PLACE, "topic": "other", "key": {"no": "text"}})) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "unexpected end"),
        ("[1]", "needs topic, partition, offset, timestamp"),
        (json.dumps({"topic": "in", "key": "a"}), "needs partition, offset, timestamp"),
        (json.dumps({**PLACE, "value": "text"}), 'the value "text" does not fit'),
        (json.dumps({**PLACE, "offset": "x"}), "invalid literal"),
        (json.dumps({**PLACE, "timestamp": "yesterday"}), "timestamp"),
    ],
)
def test_the_error_names_the_file_and_the_line(line: str, reason: str) -> None:
    with pytest.raises(StreamsError, match=f"A line of file:/history.jsonl is no record: .*{reason}") as error:
        read(line)
    assert json.dumps(line[:200]) in str(error.value)
