"""Small stream threads for the supervisor's tests: real processes that a test controls over a socket.

A separate module, importable by the spawned process: conftest.py puts its folder on the path.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import logging
import multiprocessing
import os
import select
import socket
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from penstock.supervisor.processes.worker_process import PipeControl, WorkerSpec
from penstock.topology.errors import ConfigError, EventLoopError, UnknownStateStoreError
from penstock.workers.control.messages import (
    ApplicationShutdownRequested,
    CommandResult,
    Failed,
    Measure,
    PartitionStalled,
    Pause,
    Query,
    Resume,
    Shutdown,
    ShutDownApplication,
    StateChanged,
    Status,
    TaskResults,
    TaskStatus,
    ThreadControl,
)
from penstock.workers.metrics.sensors import MetricGroup

#: Where the test listens: the path of a unix socket, as a consumer setting, because those are passed unchanged.
CONDUCTOR = "consumer.test.conductor"
BEAT_SECONDS = 0.02


class Puppet:
    """A stream thread that reports its states, sends heartbeats, and carries out the test's orders."""

    def __init__(self, spec: WorkerSpec, control: ThreadControl, orders: socket.socket) -> None:
        self.spec = spec
        self.control = control
        self.line = orders
        self.state = "CREATED"
        self.records = 0
        self.lag = 7
        self.deaf = False
        self.hoard = bytearray()

    def tell(self, **event: Any) -> None:
        self.line.sendall(json.dumps(event).encode() + b"\n")

    def go(self, state: str) -> None:
        self.control.report(StateChanged(self.state, state))
        self.state = state

    def run(self) -> None:
        self.tell(slot=self.spec.slot, pid=os.getpid(), name=self.spec.name, threads=self.spec.num_threads)
        self.go("STARTING")
        while self.state != "DEAD":
            tasks = (TaskStatus(f"0_{self.spec.slot}", "active", "RUNNING", 1, 2),)
            self.control.report(
                Status(self.state, tasks, records_processed=self.records, lag=self.lag, metrics={"m": 1.0})
            )
            if select.select((self.line,), (), (), BEAT_SECONDS)[0]:
                for order in self.line.recv(65536).splitlines() or [b'{"do": "return"}']:  # nothing: the test is over
                    self.obey(json.loads(order))
            for command in self.control.poll_commands():
                self.on_command(command)

    def on_command(self, command: Any) -> None:
        match command:
            case Shutdown(leave_group=leave):
                self.tell(command="shutdown", leave_group=leave)
                if not self.deaf:
                    self.go("PENDING_SHUTDOWN")
                    self.go("DEAD")
            case Pause() | Resume() | ShutDownApplication():
                self.tell(command=type(command).__name__.lower())
            case Query(id=number, store=store, arguments=arguments):
                self.tell(query=store)
                error = None if store == "counts" else "no such store"
                rows = TaskResults()
                rows.add(f"0_{self.spec.slot}", list(arguments), None)
                self.control.report(CommandResult(number, rows, error, UnknownStateStoreError))
            case Measure(id=number) if not self.deaf:
                group = MetricGroup("stream-thread-metrics", {"thread-id": self.spec.name}, {"measured": 2.0})
                self.control.report(CommandResult(number, (group,)))

    def obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "go":
                for state in order["states"]:
                    self.go(state)
            case "raise":
                raise ValueError(order["message"])
            case "lose the event loop":
                raise EventLoopError(order["message"])
            case "refuse":
                raise ConfigError(order["message"])
            case "answer for the group":
                self.control.report(ApplicationShutdownRequested())
            case "stall":
                self.control.report(PartitionStalled("0_0", "in-0", 3, 9, 60_000, "REPLACE_PROCESS"))
            case "exit":
                assert isinstance(self.control, PipeControl)
                self.control.close()  # the supervisor must see that this stream thread had started
                os._exit(order["code"])
            case "return":
                self.state = "DEAD"
            case "hang":  # in C, with the interpreter's lock held: no other thread of this process runs either
                self.tell(hangs=True)
                ctypes.PyDLL(None).sleep(600)
            case "fork":  # keeps all our pipes open
                child = os.fork()
                if child == 0:
                    time.sleep(600)
                self.tell(child=child)
            case "leave running":
                self.tell(left=leave_running(order["what"]))
            case "fail and hang":
                self.control.report(Failed("ValueError", "poison", "a traceback"))
                self.go("DEAD")
                assert isinstance(self.control, PipeControl)
                self.control.close()  # everything has been sent
                ctypes.PyDLL(None).sleep(600)
            case "be deaf":
                self.deaf = True
                self.tell(deaf=True)
            case "process":
                self.records += order["records"]
            case "lag":
                self.lag = order["records"]
            case "hoard":
                self.hoard = bytearray(os.urandom(1024) * (order["bytes"] // 1024))
                self.tell(hoards=len(self.hoard))
            case "reuse":  # the freed block, although a smaller one was requested in between
                block = bytearray(4_500)
                address = ctypes.addressof(ctypes.c_char.from_buffer(block))
                del block
                smaller, block = bytearray(3_000), bytearray(4_500)
                self.tell(reused=ctypes.addressof(ctypes.c_char.from_buffer(block)) == address, beside=len(smaller))
            case "print":
                print(order["stdout"])
                os.write(2, order["stderr"].encode())
            case "log":
                logging.getLogger("user.code").log(order["level"], order["message"], *order["arguments"])
                warnings.warn("a user's warning", stacklevel=1)


#: Resources of a user's function; kept here because a garbage-collected pool ends.
LEFT: list[Any] = []


class NeverGone:
    """An object whose end never comes."""

    def __init__(self) -> None:
        self._wait = threading.Event().wait

    def __del__(self) -> None:
        self._wait()


def leave_running(what: str) -> list[int]:
    """Open resources that keep an interpreter from ending; return the pids of its processes."""
    if what == "object":
        vars(builtins)["left_running"] = NeverGone()  # an interpreter drops them at last
        return []
    if what == "thread":
        LEFT.append(threading.Thread(target=threading.Event().wait, name="users-thread"))
        LEFT[-1].start()
        return []
    context = multiprocessing.get_context("fork")
    if what == "executor":
        LEFT.append(executor := ProcessPoolExecutor(2, context))
        executor.submit(os.getpid).result()
    else:
        LEFT.append(context.Pool(2))
    return [child.pid or 0 for child in multiprocessing.active_children()]


def puppet(spec: WorkerSpec, control: ThreadControl) -> None:
    """Run a Puppet that the test controls."""
    with socket.socket(socket.AF_UNIX) as orders:
        orders.connect(spec.config[CONDUCTOR])
        Puppet(spec, control, orders).run()


def loads_its_topology(spec: WorkerSpec, control: ThreadControl) -> None:
    """Load the topology, then act as a puppet."""
    topology = spec.topology.load()
    print("loaded", topology.describe(), flush=True)
    puppet(spec, control)
