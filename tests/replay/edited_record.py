"""A program that debugs a record in an editor: python -m tests.replay.edited_record PORT FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import Serdes, StreamsBuilder
from penstock.replay.own_code import OwnCode
from penstock.replay.record_debugger import Editor
from tests.replay.replayed import Input, Replays

TEXT = Serdes.string()


def shout(value: str) -> str:
    return value.upper()


def main(port: int, folder: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=TEXT, value_serde=TEXT).map_values(shout).to("out", key_serde=TEXT, value_serde=TEXT)
    records = Input("in")
    records.add("in", "a", "quiet", 0)
    editor = Editor(OwnCode.of("tests.replay.edited_record:topology"), port)
    with Replays(builder.build(), records, folder).replica() as replica:
        replica.head()
        sent = replica.process_next(editor.run_record)
    print([record.value for record in sent], editor.has_stopped)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
