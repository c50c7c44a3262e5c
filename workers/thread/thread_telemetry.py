"""Pushes a stream thread's metrics to a broker, each by the client that Kafka Streams uses for it (KIP-714, KIP-1076).

The main consumer pushes those of the thread, its tasks and stores (Kafka Streams:
StreamsThreadMetricsDelegatingReporter); each client its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from penstock.clients.clock import Clock
from penstock.clients.telemetry.client_telemetry import ClientTelemetry
from penstock.clients.telemetry.telemetry_collector import TelemetryPoint

from ..control.messages import AskClientInstanceIds, CommandResult
from ..metrics.sensors import MetricGroup
from ..metrics.telemetry_points import telemetry_points

#: How long a closing thread waits for the answers to its last pushes, in seconds: they are not worth a slow stop.
CLOSE_SECONDS = 2.0

_CLIENT_TAG = "client-id"


@dataclass(slots=True)
class _Question:
    command: AskClientInstanceIds
    deadline_ms: int


@dataclass(eq=False)
class ThreadTelemetry:
    """The telemetry of a stream thread's clients; only the thread itself may use it.

    clients: by client id; a replaced client has a new telemetry. main: the client id of the main consumer; main_labels:
    what describes it, with the member id of the moment. of_thread: reads all metrics; of_clients: those of Kafka's
    clients. report: sends an answer to the supervisor.
    """

    clients: Callable[[], Mapping[str, ClientTelemetry]]
    main: str
    main_labels: Callable[[], Mapping[str, str]]
    of_thread: Callable[[], Iterable[MetricGroup]]
    of_clients: Callable[[], Iterable[MetricGroup]]
    clock: Clock
    report: Callable[[CommandResult], None]

    def __post_init__(self) -> None:
        self._questions: list[_Question] = []

    def advance(self) -> None:
        """Push what is due, and answer questions; does not block."""
        for client_id, telemetry in self.clients().items():
            telemetry.advance(partial(self._measure, client_id))
        if self._questions:
            self._questions = [question for question in self._questions if not self._answer(question)]

    def _measure(self, client_id: str) -> Iterator[TelemetryPoint]:
        is_main = client_id == self.main
        if is_main:
            self.clients()[client_id].labels.update(self.main_labels())
        groups = self.of_thread() if is_main else self.of_clients()
        return telemetry_points(group for group in groups if group.tags.get(_CLIENT_TAG, self.main) == client_id)

    def ask(self, command: AskClientInstanceIds) -> None:
        """Answer with the ids of all clients as soon as brokers have given them, or with an error after its time."""
        self._questions.append(_Question(command, self.clock.monotonic_ms() + command.timeout_ms))

    def _answer(self, question: _Question) -> bool:
        """Return whether the question was answered."""
        ids = {
            client_id: telemetry.client_instance_id
            for client_id, telemetry in self.clients().items()
            if telemetry.enabled
        }
        missing = sorted(client_id for client_id, found in ids.items() if found is None)
        if missing and self.clock.monotonic_ms() < question.deadline_ms:
            return False
        error = f"no broker has given {', '.join(missing)} a client instance id" if missing else None
        found: dict[str, UUID | None] | None = None if missing else ids
        self.report(CommandResult(question.command.id, found, error=error))
        return True

    def close(self) -> None:
        """Push the last metrics, and wait for the answers for a limited time."""
        found = self.clients()
        deadline_ms = self.clock.monotonic_ms() + CLOSE_SECONDS * 1000
        for client_id, telemetry in found.items():
            telemetry.begin_close(partial(self._measure, client_id))
        for telemetry in found.values():
            telemetry.finish_close(max(deadline_ms - self.clock.monotonic_ms(), 0) / 1000)
