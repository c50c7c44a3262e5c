from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, final

from penstock.kernel.messages import _Headers

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Error = TypeVar("_Error")

class _Producer(Protocol):
    """The part of a StreamsProducer that says whether a transaction has begun."""

    @property
    def transactional(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...

class _ChangeOutput(Protocol):
    """The part of a TaskOutput that a store uses."""

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: _Headers = None
    ) -> None: ...

class _Output(_ChangeOutput, Protocol):
    """A TaskOutput."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: _Headers,
        partition: int | None = None,
    ) -> None: ...

class RecordTaker: ...

@final
class RecordWriter:
    def __init__(
        self,
        records: RecordTaker,
        plain: _Output,
        errors: list[_Error],
        producer: _Producer,
        changelogs: Mapping[str, tuple[str, int]],
        source: Callable[[], object] | None = None,
    ) -> None: ...
    def send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | None,
        timestamp: int | None,
        headers: _Headers,
        partition: int | None = None,
    ) -> None: ...
    def log_change(
        self,
        store_name: str,
        key: bytes,
        value: bytes | None,
        timestamp: int | None,
        headers: _Headers = None,
    ) -> None: ...

class RecordSink:
    def __init__(
        self,
        output: _Output,
        topic: str,
        to_key: Callable[[_Key], bytes | None] | None,
        keys_may_be_none: bool,
        to_value: Callable[[_Value], bytes | None] | None,
        values_may_be_none: bool,
    ) -> None: ...

@final
class WindowedSink(RecordSink):
    def __init__(
        self,
        output: _Output,
        topic: str,
        to_key: Callable[[_Key], bytes | None] | None,
        keys_may_be_none: bool,
        to_value: Callable[[_Value], bytes | None] | None,
        values_may_be_none: bool,
        times_size: int,
        partition_count: Callable[[], int],
    ) -> None: ...

@final
class Changelog:
    def __init__(self, output: _ChangeOutput, store: str) -> None: ...
