"""Stores of users for operators, and DslStoreSuppliers that choose them."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    StateStore,
    StateStoreContext,
    Stores,
    TopicPartition,
    Windowed,
)


class OwnRows(StateStore):
    """Rows in a dict, with a sorted list of keys. puts: how many there were, of all instances."""

    puts = 0

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.data: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        self.context = context

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        OwnRows.puts += 1
        if value is None:
            if self.data.pop(key, None) is not None:
                self.keys.remove(key)
            return
        if key not in self.data:
            insort(self.keys, key)
        self.data[key] = value

    def range(self, key_from: bytes | None, key_to: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys[0 if key_from is None else bisect_left(self.keys, key_from) :]:
            if key_to is not None and key > key_to:
                return
            yield key, self.data[key]

    def approximate_num_entries(self) -> int:
        return len(self.data)


class LastingRows(OwnRows):
    """These rows on disk: each commit writes them and their changelog offset into one file."""

    persistent = True
    file: Path
    offset: int | None = None

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        super().init(context, root)
        self.file = context.state_dir / "rows.json"
        if self.file.exists():
            self.offset, rows = json.loads(self.file.read_text())
            self.data = {bytes.fromhex(key): bytes.fromhex(value) for key, value in rows.items()}
            self.keys = sorted(self.data)

    @override
    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        (self.offset,) = changelog_offsets.values()
        rows = {key.hex(): value.hex() for key, value in self.data.items()}
        written = self.file.with_suffix(".new")
        written.write_text(json.dumps([self.offset, rows]))
        written.replace(self.file)

    @override
    def committed_offset(self, partition: TopicPartition) -> int | None:
        return self.offset


class OwnWindows(StateStore):
    """Windows in a dict by start and key; with duplicates, lists of values."""

    puts = 0

    def __init__(self, name: str, retention_ms: int = 0, duplicates: bool = False) -> None:
        super().__init__(name)
        self.data: dict[tuple[int, bytes], list[bytes]] = {}
        self.retention_ms, self.duplicates = retention_ms, duplicates
        self.observed_ms = 0

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        self.context = context

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        OwnWindows.puts += 1
        if value is None:
            self.data.pop((window_start, key), None)
        elif self.duplicates:
            self.data.setdefault((window_start, key), []).append(value)
        else:
            self.data[window_start, key] = [value]
        if self.duplicates and window_start > self.observed_ms:
            self.observed_ms = window_start
            self.data = {at: found for at, found in self.data.items() if at[0] > window_start - self.retention_ms}

    def fetch(self, key: bytes, window_start: int) -> bytes | None:
        found = self.data.get((window_start, key))
        return None if found is None else found[0]

    def fetch_range(self, key: bytes, time_from: int, time_to: int) -> Iterator[tuple[int, bytes]]:
        for (start, other), values in sorted(self.data.items()):
            if other == key and time_from <= start <= time_to:
                yield from ((start, value) for value in values)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[bytes], bytes]]:
        for (start, key), values in self.data.items():
            if time_from <= start <= time_to:
                yield from ((Windowed(key, start, start), value) for value in values)


class OwnSessions(StateStore):
    """Sessions in a dict."""

    puts = 0

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.data: dict[Windowed[bytes], bytes] = {}

    @override
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        self.context = context

    def put(self, session: Windowed[bytes], value: bytes | None) -> None:
        OwnSessions.puts += 1
        if value is None:
            self.data.pop(session, None)
        else:
            self.data[session] = value

    def fetch_session(self, key: bytes, start: int, end: int) -> bytes | None:
        return self.data.get(Windowed(key, start, end))

    def find_sessions(
        self, key: bytes, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[bytes], bytes]]:
        for session, value in self.data.items():
            if session.key == key and session.end >= earliest_end and session.start <= latest_start:
                yield session, value

    def find_sessions_ending(self, earliest_end: int, latest_end: int) -> Iterator[tuple[Windowed[bytes], bytes]]:
        for session, value in self.data.items():
            if earliest_end <= session.end <= latest_end:
                yield session, value


class OwnSuppliers(DslStoreSuppliers):
    """Chooses the stores above."""

    rows: type[OwnRows] = OwnRows

    def key_value_store(self, params: DslKeyValueParams) -> Any:
        return Stores.custom_store_builder(params.name, self.rows)

    def window_store(self, params: DslWindowParams) -> Any:
        return Stores.custom_store_builder(
            params.name, lambda name: OwnWindows(name, params.retention_ms, params.retain_duplicates)
        )

    def session_store(self, params: DslSessionParams) -> Any:
        return Stores.custom_store_builder(params.name, OwnSessions)


class LastingSuppliers(OwnSuppliers):
    """Chooses rows on disk."""

    rows = LastingRows
