"""One schedule: an application, its hosts and processes, the faults that hit them, and the checks at the end.

All of it follows from the seed. In the first part there are faults. Then all faults end, and the application must
process all input within a bounded simulated time. Then all processes are shut down, and the auditor checks the result.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.errors import StreamsError
from penstock.topology.records import RawRecord, TopicPartition
from penstock.workers.tasks.task_state import TaskState
from tests.simulation.applications import APPLICATIONS, CLOSER, COUNTS, IN, OUT, TABLE, InputRecord, service_ms
from tests.simulation.auditor import Auditor, rows_of
from tests.simulation.broker import MARKER_DELAY_LONG_MS, Broker
from tests.simulation.coordinators import Coordinators
from tests.simulation.disk import Disk
from tests.simulation.faults import Trigger
from tests.simulation.harsh import Harsh
from tests.simulation.java_member import Kinds
from tests.simulation.kinds import PLAIN, Kind, LateAnswers
from tests.simulation.process import Host, Process, Roughness
from tests.simulation.world import LOG, EndlessError, HostClock, StalledError, World

KEYS = tuple("abcdef")
FIRST_TIMESTAMP = 1_700_000_000_000
#: Simulated time in ms after the last fault, within which the application must come to rest (process all input).
REST_MS = 120_000
#: The same with own producers; while idle processes wait for responses, more time passes than brokers need.
OWN_REST_MS = 600_000
#: While it comes to rest: after this number of idle steps, this time passes between two steps, in ms.
IDLE_STEPS, IDLE_STEP_MS = 6, 30
#: The points of an idle step.
IDLE_POINTS = {"consume", "wait"}
#: At the end, all wall clocks are advanced by this, in ms, because one that was set back would not tick for long.
CLOCK_AHEAD_MS = 36_000_000
#: Wall-clock ticks cause work without input. If there is none for this long, in ms, no more is left.
SETTLE_MS = 8_000
#: Kinds of points at which a commit, a restore or a close is under way: most faults are aimed there.
AIMS = (
    "commit store", "restore store", "persist store", "close store", "open store", "flush producer", "send some",
    "send offsets", "commit transaction", "abort transaction", "init transactions", "list offsets", "list offsets",
    "group commit", "group committed", "delete records", "consume",
)  # fmt: skip
#: The same for Penstock's own producers: their requests.
OWN_AIMS = (
    "ask InitProducerId", "ask AddPartitionsToTxn", "ask AddOffsetsToTxn", "ask TxnOffsetCommit", "ask EndTxn",
    "ask for leaders", "ask for an id", "connect",
)  # fmt: skip
#: Points that few processes reach, and how much more often faults hit them in some schedules.
RARE_AIMS = ("abort transaction", "init transactions", "delete records")
RARE_WEIGHT = 6
#: Other parameters of these schedules.
RARE_ROUNDS, RARE_FAULT_SHARE, RARE_FAILED_SENDS = 160, 0.4, 0.03
#: How long a process is stopped or slow, in ms: shorter and longer than a session, a transaction, a poll interval.
PAUSES_MS = (30, 900, 7_000, 12_000, 12_000, 30_000)
LONG_PAUSES_MS = (12_000,)
#: What an aim begins with where processes are to be killed, not stopped.
KILL_AT = "kill at "


@dataclass(frozen=True)
class Plan:
    """The decisions that a seed makes before anything runs."""

    application: Any
    exactly_once: bool
    settings: dict[str, Any]
    partitions: int
    hosts: int
    slots: int
    rounds: int
    fault_share: float
    roughness: Roughness

    @classmethod
    def of(cls, world: World, applications: Sequence[Any] = APPLICATIONS) -> Plan:
        """Draw a plan."""
        chance = world.chance
        exactly_once = chance.random() < 0.6
        settings = {
            "processing.guarantee": "exactly_once_v2" if exactly_once else "at_least_once",
            "commit.interval.ms": chance.choice((50, 400, 3_000)),
            "statestore.cache.max.bytes": chance.choice((0, 0, 700, 10_000_000)),
            "num.standby.replicas": chance.choice((0, 0, 1)),
            "penstock.static.membership": chance.random() < 0.4,
            "acceptable.recovery.lag": chance.choice((0, 10_000)),
            "topology.optimization": chance.choice(("none", "all")),
            "max.task.idle.ms": chance.choice((0, 0, 500)),
            "consumer.max.poll.records": chance.choice((2, 1000)),
            "poll.ms": 100,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_500,
            "max.poll.interval.ms": 20_000,
            "transaction.timeout.ms": chance.choice((5_000, 30_000)),
            "probing.rebalance.interval.ms": 60_000,
            "repartition.purge.interval.ms": 1_000,
        }
        rough = chance.choice((0.0, 0.0, 0.02, 0.1))
        failing = chance.choice((0.0, 0.0, 0.02))
        return cls(
            chance.choice(applications),
            exactly_once,
            settings,
            partitions=chance.choice((1, 2, 3)),
            hosts=chance.choice((1, 2, 2, 3)),
            slots=chance.choice((1, 1, 2)),
            rounds=chance.choice((40, 80, 120)),
            fault_share=chance.choice((0.0, 0.1, 0.2, 0.3)),
            roughness=Roughness(
                rough, failing, chance.choice((0.0, 0.1)), world.further_chance.choice((0.0, 0.0, 0.05, 0.3))
            ),
        )


def rarely(plan: Plan) -> Plan:
    """Return a plan with more aborts and deletions, which are rare, and with faults there."""
    return replace(
        plan,
        application=next(application for application in APPLICATIONS if application.repartitioned),
        exactly_once=True,
        settings={**plan.settings, "processing.guarantee": "exactly_once_v2", "commit.interval.ms": 50},
        rounds=RARE_ROUNDS,
        fault_share=RARE_FAULT_SHARE,
        roughness=replace(plan.roughness, failed_sends=RARE_FAILED_SENDS),
    )


class Simulation:
    """Runs the schedule of one seed. directory: where real state directories are kept meanwhile.

    aims: kinds of points where processes are to be stopped for longer than a session, or killed (KILL_AT), instead of
    all other faults.
    """

    def __init__(self, seed: int, directory: Path, aims: Sequence[str] = (), kind: Kind = PLAIN) -> None:
        self.world = World(seed)
        self._harsh = Harsh(self.world, kind.harsh, kind.choosing)
        self._kinds = Kinds(self.world, kind.mixed)
        self._late = LateAnswers(seed, kind.late)
        self._aims = tuple(aim.removeprefix(KILL_AT) for aim in aims)
        self._killing = any(aim.startswith(KILL_AT) for aim in aims)
        self._pauses_ms = LONG_PAUSES_MS if aims else PAUSES_MS
        self.plan = self._planned(kind)
        self.auditor = Auditor(self.world, self.plan.application, self.plan.exactly_once)
        self.broker = Broker(self.world, self.auditor.on_commit, kind.transaction_level(seed))
        self.auditor.watch(self.broker)
        self._harsh.on_outage = self.broker.follow_outage
        self._coordinators = Coordinators(self.broker) if kind.own else None
        self._rest_ms = OWN_REST_MS if kind.own else REST_MS
        self._idle_steps = IDLE_STEPS
        self._kinds_of_points: tuple[str, ...] = (*AIMS, *OWN_AIMS) if kind.own else AIMS
        if kind.rare:
            self._kinds_of_points += (OWN_AIMS if kind.own else RARE_AIMS) * RARE_WEIGHT
        self.directory = directory / f"seed-{seed}"
        self.hosts = [self._host(number) for number in range(self.plan.hosts)]
        self.processes: dict[tuple[str, int], Process] = {}
        self.expected_errors: list[str] = []
        if kind.harsh:
            self.expected_errors += Harsh.expected_errors
        if self.plan.roughness.failed_sends:
            self.expected_errors += ["FailedProcessingError", "a record was not delivered"]
        self.topology = self.plan.application.build(self._seen, self.plan.settings)
        inputs = self.plan.application.inputs
        self._committed_topics = {topic for topic in inputs if topic != TABLE or not self.plan.application.global_table}
        self._lives = 0
        self._written = 0
        self._timestamp = FIRST_TIMESTAMP
        self._current: Process | None = None
        self._faults_on = False

    def _planned(self, kind: Kind) -> Plan:
        # With aims, the newest application is left out, so that seeds that are hard to find keep their plans.
        plan = Plan.of(self.world, APPLICATIONS[:-1] if self._aims else APPLICATIONS)
        if kind.rare:
            plan = rarely(plan)
        return replace(
            plan,
            application=kind.application(self.world.seed, plan.application),
            settings=kind.settings(self.world.seed, plan.settings),
        )

    def _host(self, number: int) -> Host:
        state_dir = self.directory / f"host{number}"
        drawn = UUID(int=self.world.chance.getrandbits(128), version=4).int
        process_id = str(UUID(int=drawn ^ 1 << 127))  # Java's order of the numbers drawn: known seeds stay as they were
        config = StreamsConfig(
            {
                **self.plan.settings,
                "application.id": "app",
                "bootstrap.servers": "simulated:9092",
                "state.dir": str(state_dir),
            }
        )
        return Host(
            f"h{number}",
            process_id,
            state_dir,
            config,
            Disk(self.world.chance, self._harsh.disk_fails, self._harsh.is_damaged_inside),
            HostClock(self.world),
            self._kinds.next_is_java(),
        )

    def _seen(self, number: str, again: bool = False) -> None:
        assert self._current is not None
        self.auditor.seen(number, self._current.client, again)

    # The schedule

    def run(self) -> None:
        """Run the schedule; world.violations then has the violations."""
        plan = self.plan
        self.world.note("seed", f"{self.world.seed}: {plan}")
        for topic in (*plan.application.inputs,):
            self.broker.create_topic(topic, plan.partitions)
        for topic in (OUT, COUNTS):
            self.broker.create_topic(topic, 1)
        try:
            self._go_wrong()
            self._come_to_rest()
            stores = self._stores()
            self._shut_down()
            self.auditor.check_end(stores)
        except StalledError as stalled:
            self.world.violated(f"STALLED: {stalled}")
        except EndlessError:
            self.world.note("schedule", "ended early: the violations have no end")
        finally:
            self._clean_up()

    def _go_wrong(self) -> None:
        plan, chance = self.plan, self.world.chance
        self._faults_on = plan.fault_share > 0
        for host in self.hosts:
            for slot in range(1, plan.slots + 1):
                self._start(host, slot)
        for _ in range(plan.rounds):
            if chance.random() < 0.3:
                self._produce(chance.randint(1, 4))
            if chance.random() < plan.fault_share:
                self._fault()
            self._harsh.next_round()
            if chance.random() < 0.1:
                self._start_missing()
            self._step_someone()
            self.world.advance(chance.choice((0, 1, 20)))

    def _come_to_rest(self) -> None:
        self._faults_on = False
        self._harsh.end()
        self.world.note("schedule", "all is fixed")
        for partition in range(self.plan.partitions):
            self._write(IN, CLOSER, partition)
        self._timestamp += 100_000
        for partition in range(self.plan.partitions):
            self._write(IN, CLOSER, partition)
        for process in self._alive():
            process.points.trigger = None
            process.roughness = Roughness()
        for host in self.hosts:
            host.clock.set_by_ms = CLOCK_AHEAD_MS
        deadline_ms = self.world.now_ms + self._rest_ms
        if self.plan.application.asks:
            deadline_ms += service_ms(self.auditor.inputs)
        self._go_on(self._at_rest, deadline_ms)
        if self.plan.application.ticks:
            self._go_on(self._settling(), deadline_ms)

    def _settling(self) -> Callable[[], bool]:
        """Return a predicate: everything has been at rest for so long that ticks cause no more work."""
        since_ms = self.world.now_ms

        def has_settled() -> bool:
            nonlocal since_ms
            if not self._at_rest():  # a tick's work is under way, or was aborted
                since_ms = self.world.now_ms
            return self.world.now_ms - since_ms >= SETTLE_MS

        return has_settled

    def _go_on(self, reached: Callable[[], bool], deadline_ms: int) -> None:
        trace, idle = self.world.trace, 0
        while not reached():
            if self.world.now_ms > deadline_ms:
                raise StalledError(self._what_is_missing())
            before = len(trace)
            self._start_missing()
            self._step_someone()
            idle = idle + 1 if all(what in IDLE_POINTS or who == LOG for _, who, what in trace[before:]) else 0
            # With aims, time passes in steps of 1 ms, because the order of events matters.
            self.world.advance(IDLE_STEP_MS if idle > self._idle_steps and not self._aims else 1)

    def _shut_down(self) -> None:
        for process in self._alive():
            process.shut_down(leave_group=True)
        deadline_ms = self.world.now_ms + self._rest_ms
        while self._alive():
            if self.world.now_ms > deadline_ms:
                raise StalledError(f"{[p.client for p in self._alive()]} do not shut down")
            self._step_someone()
        self.world.advance(MARKER_DELAY_LONG_MS)
        self._check_nothing_is_held()

    def _clean_up(self) -> None:
        for process in self._alive():
            process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Processes

    def _alive(self) -> list[Process]:
        return [process for process in self.processes.values() if not process.ended]

    def _start(self, host: Host, slot: int) -> None:
        self._lives += 1
        process = Process(self.world, self.broker, host, slot, self._lives, self.topology, self._coordinators)
        process.on_count_asked = self._harsh.partitions_are_asked_for
        process.answer_ms = self._late.next_ms
        if self._faults_on:
            process.roughness = replace(self.plan.roughness, unanswered=0.0) if self._aims else self.plan.roughness
        self.processes[host.name, slot] = process

    def _start_missing(self) -> None:
        """Replace ended processes, as the supervisor does."""
        for (_, slot), process in list(self.processes.items()):
            if process.ended and not process.leaves:
                self._start(process.host, slot)
        if not self._alive():
            self._start(self.hosts[0], 1)

    def _step_someone(self) -> None:
        ready = [process for process in self._alive() if process.ready()]
        if not ready:
            self.world.skip(100)
            return
        process = self.world.chance.choice(ready)
        self._resume(process.resume, process)

    def _resume(self, resume: Callable[[], None], process: Process) -> None:
        before, self._current = self._current, process
        resume()
        self._current = before
        if process.error is not None:
            self._judge_death(process, process.error)
            process.error = None

    def _judge_death(self, process: Process, error: BaseException) -> None:
        """Record a violation unless the thread died of an error that the schedule has caused."""
        self.world.disturbed = True
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, StreamsError) and any(part in text for part in self.expected_errors):
            return
        self.world.violated(f"{process.client} died of {text}")

    # Faults

    def _fault(self) -> None:
        chance = self.world.chance
        kinds: list[Callable[[], None]] = [
            *[self._arm] * 8, self._kill_one, self._lose_state, self._corrupt_state,
            self._remove_thread, self._add_thread, self._set_clock, self._compact, self._jump,
        ]  # fmt: skip
        chance.choice([self._arm] if self._aims else kinds)()

    def _arm(self) -> None:
        """Arm a trigger in a process."""
        chance = self.world.chance
        alive = self._alive()
        if not alive:
            return
        process = chance.choice(alive)
        aimed = chance.random() < 0.75
        kind = chance.choice(self._aims or self._kinds_of_points) if aimed else None
        left = chance.randint(1, 2 if aimed else 40)
        pause_ms = chance.choice(self._pauses_ms)
        actions: dict[str, Callable[[], None]] = {
            "kill": lambda: self._kill(process),
            "stop": lambda: self._pause(process, pause_ms, stopped=True),
            "slow": lambda: self._pause(process, pause_ms, stopped=False),
        }
        aimed_at = ("kill",) if self._killing else ("stop",)
        name = chance.choice(aimed_at if self._aims else ("kill", "stop", "stop", "slow"))
        process.points.trigger = Trigger(name, kind, left, chance.random() < 0.5, actions[name])
        self.world.note(process.client, f"will be hit: {process.points.trigger}")

    def _kill(self, process: Process) -> None:
        self.world.disturbed = True
        self.world.happened("a process is killed")
        process.kill()

    def _kill_one(self) -> None:
        if alive := self._alive():
            self._kill(self.world.chance.choice(alive))

    def _pause(self, process: Process, ms: int, stopped: bool) -> None:
        self.world.disturbed = True
        process.pause(ms, stopped)

    def _lose_state(self) -> None:
        """Delete the state directories of a host's tasks that no process uses."""
        host = self.world.chance.choice(self.hosts)
        if not host.state_dir.exists():
            return
        directory = StateDirectory(host.state_dir, "app", host.clock.wall_clock_ms)
        for task_id in directory.tasks_on_disk():
            try:
                directory.wipe(task_id)
            except StreamsError:  # a process has it open
                continue
            self.world.note(host.name, f"the state directory of {task_id} is DELETED")
            self.world.happened("a state directory is deleted")

    def _corrupt_state(self) -> None:
        host = self.world.chance.choice(self.hosts)
        if (store := host.disk.corrupt()) is not None:
            self.world.note(host.name, f"the files of {store} are CORRUPTED")
            self.world.happened("files are corrupted")

    def _remove_thread(self) -> None:
        alive = self._alive()
        if len(alive) > 1:
            process = self.world.chance.choice(alive)
            process.shut_down(leave_group=self.world.chance.random() < 0.7)
            self.world.happened("a thread is removed")

    def _add_thread(self) -> None:
        host = self.world.chance.choice(self.hosts)
        slot = self.world.chance.randint(1, 3)
        process = self.processes.get((host.name, slot))
        if process is None or process.ended:
            self.world.note(host.name, f"gets a thread in slot {slot}")
            self.world.happened("a thread is added")
            self._start(host, slot)

    def _set_clock(self) -> None:
        host = self.world.chance.choice(self.hosts)
        host.clock.set_by_ms += self.world.chance.choice((-3_600_000, -1_000, 1_000, 3_600_000))
        self.world.note(host.name, "its wall clock is set")
        self.world.happened("a wall clock is set")

    def _jump(self) -> None:
        """Suspend all machines for a while."""
        self.world.disturbed = True
        ms = self.world.chance.choice(PAUSES_MS)
        self.world.note("schedule", f"nobody runs for {ms} ms")
        self.world.happened("all machines sleep")
        self.world.advance(ms)
        for process in self._alive():
            process.sleep_with_machine(ms)

    def _compact(self) -> None:
        topics = sorted({p.topic for p in self.broker.logs if p.topic.endswith("-changelog")})
        if topics:
            topic = self.world.chance.choice(topics)
            self.world.note("broker", f"{topic} is compacted")
            self.world.happened("a changelog is compacted")
            self.broker.compact(topic, self._harsh.trims())

    # Input

    def _produce(self, count: int) -> None:
        for _ in range(count):
            topic = self.world.chance.choice(self.plan.application.inputs)
            key = self.world.chance.choice(KEYS)
            self._write(topic, key, partition_for_key(key.encode(), self.plan.partitions))

    def _write(self, topic: str, key: str, partition: int) -> None:
        self._written += 1
        self._timestamp += self.world.chance.choice((0, 100, 900))
        record = InputRecord(str(self._written), topic, partition, key, self._timestamp)
        log = self.broker.logs[TopicPartition(topic, partition)]
        self.auditor.on_input(record, log.end)
        self.broker.append(RawRecord(topic, partition, -1, self._timestamp, key.encode(), record.number.encode()))

    # Rest

    def _at_rest(self) -> bool:
        """True if all input has been processed and committed, and all processes are running."""
        return not self._what_is_missing()

    def _what_is_missing(self) -> str:
        for partition, log in self.broker.logs.items():
            if log.last_stable < log.end:
                return f"a transaction on {partition} is open"
            source = partition.topic in self._committed_topics or partition.topic.endswith("-repartition")
            committed = self.broker.committed.get(partition)
            if source and log.end and (committed is None or committed.offset < log.end):
                return f"{partition} is committed at {committed and committed.offset} of {log.end}"
        for process in self._alive():
            if process.paused or process.thread is None or process.thread.state.name != "RUNNING":
                return f"{process.client} is not running"
            if not self.broker.group.is_current(process.client):  # it was stopped and does not know it yet
                return f"{process.client} is not a member"
            if self.plan.application.global_table and not self._has_global_table(process):
                return f"{process.client} has not read the global table to its end"
        running = [task.task_id for task in self._tasks() if task.state is TaskState.RUNNING]
        wanted = self.plan.partitions * (2 if self.plan.application.repartitioned else 1)
        twice = len(running) - len(set(running))  # a process that was stopped does not know yet that a task has moved
        if len(running) == wanted and not twice:
            return ""
        return f"{len(running)} of {wanted} tasks run, {twice} of them twice"

    def _has_global_table(self, process: Process) -> bool:
        assert process.thread is not None
        consumer = process.thread.global_state.consumer
        ends = {partition: self.broker.logs[partition].end for partition in self.broker.partitions(TABLE)}
        return all(consumer.position(partition) == end or not end for partition, end in ends.items())

    def _tasks(self) -> list[Any]:
        return [
            task
            for process in self._alive()
            if process.thread is not None
            for task in process.thread.task_manager.active.all_tasks().values()
        ]

    def _stores(self) -> dict[str, dict[str, list[str]]]:
        """Return the rows of all active tasks' stores."""
        found: dict[str, dict[str, list[str]]] = {}
        owners: dict[Any, int] = {}
        for task in self._tasks():
            owners[task.task_id] = owners.get(task.task_id, 0) + 1
            if task.state is not TaskState.RUNNING:
                self.world.violated(f"task {task.task_id} is {task.state.name} at rest")
            for name in ("history", "versions"):
                if name in task.state_manager.stores:
                    rows = rows_of(task.state_manager.stores[name])
                    found.setdefault(name, {}).update(rows)
        if self.plan.application.global_table:
            for process in self._alive():
                assert process.thread is not None
                copy = process.thread.global_state.store("versions")
                self.auditor.check_global_table(process.client, rows_of(copy))
        twice = [str(task_id) for task_id, count in owners.items() if count > 1]
        if twice:
            self.world.violated(f"tasks {', '.join(twice)} run in two processes at rest")
        return {"history": {}, "versions": {}} | found

    def _check_nothing_is_held(self) -> None:
        for process in self.processes.values():
            if process.thread is not None and process.thread.state.name != "DEAD" and not process.ended:
                self.world.violated(f"{process.client} has not ended")
        for host in self.hosts:
            for store in host.disk.open_stores():
                self.world.violated(f"nobody runs, and the store {store} is open")
            if host.state_dir.exists():
                directory = StateDirectory(host.state_dir, "app", host.clock.wall_clock_ms)
                for task_id in directory.tasks_on_disk():
                    try:
                        directory.lock(task_id)
                    except StreamsError:
                        self.world.violated(f"nobody runs, and the lock of task {task_id} is held")
                directory.close()
        for partition, log in self.broker.logs.items():
            if log.last_stable < log.end:
                self.world.violated(f"nobody runs, and a transaction on {partition} is open")
