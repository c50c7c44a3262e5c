"""processor.wrapper.class: code around every processor of a topology, operators of the DSL included (KIP-1112)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from ..errors import ConfigError
from ..records import Headers, Record, RecordMetadata, TaskId
from .task_context import Process, TaskContext

KEY = "processor.wrapper.class"

#: What a processor does with a record.
ProcessRecord = Callable[[Record], None]


class WrappedProcessor:
    """A processor of one task, as a ProcessorWrapper sees it.

    name: as ``penstock describe`` shows it. process: processes a record, including all operators downstream.
    """

    def __init__(self, name: str, task: TaskContext, process: ProcessRecord) -> None:
        self.name = name
        self.process = process
        self._task = task

    def process_and_note(self, record: Record) -> list[Headers]:
        """Process a record. Returns the trace contexts of the table rows that the processor itself has read.

        Tables keep them with dsl.store.format=HEADERS, for rows whose last record had the context of a sampled trace.
        """
        task = self._task
        outer, task.row_contexts = task.row_contexts, []
        try:
            self.process(record)
            return task.row_contexts
        finally:
            task.row_contexts = outer

    @property
    def task_id(self) -> TaskId:
        """The task that the processor belongs to."""
        return self._task.task_id

    def record_metadata(self) -> RecordMetadata | None:
        """Return where the input record that is being processed came from; None while a punctuation runs."""
        message = self._task.message
        return None if message is None else RecordMetadata(message.topic(), message.partition(), message.offset())


class ProcessorWrapper(ABC):
    """Puts code around every processor, for traces, timing or checks (Kafka Streams: ProcessorWrapper).

    ``processor.wrapper.class`` is a class, or ``module:Class``. Each task creates its own instance. Sources and sinks
    are not wrapped. With a wrapper each operator is a Python call with its own Record.
    """

    def configure(self, config: Mapping[str, object]) -> None:  # noqa: B027 - few need it
        """Read the necessary settings from the effective configuration."""

    @abstractmethod
    def wrap(self, processor: WrappedProcessor) -> ProcessRecord:
        """Return the function to call for each record instead of ``processor.process``; called once per processor.

        It may forward the record with other headers, skip it, or raise. Values of tables are Changes, with the old and
        the new value.
        """


Wrap = Callable[[str, Process], Process]


def configured_wrap(task: TaskContext) -> Wrap | None:
    """Return the function that wraps a task's processors by name, None if not configured. Raises ConfigError."""
    configured = task.config.get(KEY)
    if configured is None:
        return None
    wrapper = configured() if isinstance(configured, type) else configured
    if not callable(getattr(wrapper, "wrap", None)):
        raise ConfigError(f"{KEY}={configured!r} has no method wrap(processor): derive it from ProcessorWrapper.")
    getattr(wrapper, "configure", lambda _: None)(task.config)

    def wrap(name: str, process: Process) -> Process:
        def pass_on(record: Record) -> None:
            before, task.headers = task.headers, record[3]
            try:
                process(*record)
            finally:
                task.headers = before

        call = wrapper.wrap(WrappedProcessor(name, task, pass_on))
        if not callable(call):
            raise ConfigError(f"{KEY}: wrap() of {type(wrapper).__name__} must return a function, not {call!r}.")

        def wrapped(key: object, value: object, timestamp: int, headers: Headers) -> None:
            call(Record(key, value, timestamp, headers))

        return wrapped

    return wrap
