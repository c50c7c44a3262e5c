"""What all parts of a stream thread share: its name, settings, clock, logs, metrics and states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.graph.topology import Topology

from ..control.messages import StateChanged, ThreadControl, ThreadSpec
from ..control.stream_thread_state import stream_thread_states
from ..metrics.custom_metrics import CustomMetrics
from ..metrics.loop_time import LoopTime
from ..metrics.sensors import ThreadMetrics
from ..metrics.spans import OpenTelemetrySpans, Spans
from .client_supplier import KafkaClientSupplier, static_instance_id


@dataclass(eq=False)
class ThreadContext:
    """supplier: creates the clients. sleep: waits (s) until new topics can be used."""

    topology: Topology
    spec: ThreadSpec
    control: ThreadControl
    supplier: KafkaClientSupplier
    clock: Clock
    sleep: Callable[[float], None]

    def __post_init__(self) -> None:
        self.config = config = self.spec.config
        self.application_id: str = config["application.id"]
        self.name = f"{self.spec.client_id}-StreamThread-{self.spec.slot}"
        self.instance_id = static_instance_id(config, self.spec.process_id, self.spec.slot)
        self.committed_only = config["isolation.level"] == "read_committed"
        self.broker_assigns = config["group.protocol"] == "streams"
        self.log_prefix = f"stream-thread [{self.name}] "
        self.log = self.logger("stream_thread")
        self.states = stream_thread_states(
            self.log, lambda old, new: self.control.report(StateChanged(old.name, new.name))
        )
        self.time = LoopTime(self.clock)
        self.metrics = ThreadMetrics(
            config["metrics.sample.window.ms"],
            config["metrics.num.samples"],
            config["penstock.metrics.sampling.percent"],
        )
        self.custom_metrics = CustomMetrics({"thread-id": self.name}, self.metrics.sensor, lambda: self.time.now_ms)
        self.spans = Spans()
        if config["penstock.tracing"]:
            self.spans = OpenTelemetrySpans({"kafka.streams.thread": self.name})

    def logger(self, module: str) -> PrefixedLogger:
        """Return the logger of a module, with this thread's prefix."""
        return PrefixedLogger(f"penstock.workers.{module}", self.log_prefix)
