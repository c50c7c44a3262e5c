"""Stores as users write them, and an application that counts words in one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    Record,
    Serdes,
    StateStore,
    StateStoreContext,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    TopicPartition,
)


class Tally(StateStore):
    """How often each word occurred, in memory."""

    reads = ("count", "words")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.counts: Counter[str] = Counter()
        #: Restored records, by batch.
        self.restored: list[Sequence[Record[bytes, bytes | None]]] = []
        self.commits = 0

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        self.context = context
        context.register(root, self.restore, self.note_commit)

    def restore(self, records: Sequence[Record[bytes, bytes | None]]) -> None:
        self.restored.append(records)
        for record in records:
            if record.value is None:
                del self.counts[record.key.decode()]
            else:
                self.counts[record.key.decode()] = int(record.value)

    def note_commit(self) -> None:
        self.commits += 1

    def add(self, word: str) -> int:
        """Count a word, and return how often it occurred."""
        self.counts[word] += 1
        self.context.log_change(word.encode(), b"%d" % self.counts[word], headers={"by": "tally"})
        return self.counts[word]

    def forget(self, word: str) -> None:
        del self.counts[word]
        self.context.log_change(word.encode(), None)

    def count(self, word: str) -> int:
        return self.counts[word]

    def words(self) -> list[str]:
        return sorted(self.counts)


class LastingTally(Tally):
    """The same on disk, with its changelog offset in the same file."""

    persistent = True
    file: Path
    offset: int | None = None

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        super().init(context, root)
        self.file = context.state_dir / "tally.json"
        if self.file.exists():
            self.offset, counts = json.loads(self.file.read_text())
            self.counts.update(counts)

    @override
    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        self.offset = next(iter(changelog_offsets.values()), None)
        written = self.file.with_suffix(".new")
        written.write_text(json.dumps([self.offset, self.counts]))
        written.replace(self.file)

    @override
    def committed_offset(self, partition: TopicPartition) -> int | None:
        return self.offset


class Count(FixedKeyProcessor[str, str, str]):
    """Forwards how often each word occurred, by a store; a value that begins with - deletes its word."""

    def __init__(self, store: StoreBuilder[Any]) -> None:
        self.store = store

    @override
    def init(self, context: FixedKeyProcessorContext[str, str]) -> None:
        super().init(context)
        self.tally: Tally = context.get_state_store(self.store)

    @override
    def process(self, record: Record[str, str]) -> None:
        if record.value.startswith("-"):
            self.tally.forget(record.value[1:])
            return
        self.context.forward(record.with_value(str(self.tally.add(record.value))))


def tallying(source: str, sink: str, store: StoreBuilder[Any]) -> Any:
    """Return a topology that counts the values of a topic in a store."""
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    builder = StreamsBuilder().add_state_store(store)
    counted = builder.stream(source, **text).process_values(lambda: Count(store), store.name)
    counted.to(sink, **text)
    return builder.build()


def tally_builder(kind: type[Tally] = Tally) -> StoreBuilder[Tally]:
    """Return the builder of a store named tally."""
    return Stores.custom_store_builder("tally", kind)
