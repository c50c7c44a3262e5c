"""Many idle tasks on one host: their start time, memory and CPU."""

from __future__ import annotations

import time

from typing_extensions import override

from benchmarks.checks import CountsCheck, check_topic
from benchmarks.data import Workload, load_topic
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import Recovered, RecoveryScenario, Run, running
from benchmarks.systems import THREADS

#: A hundred records for each of 1,000 tasks.
RECORDS = 100_000
#: Time for the last commits and their effects to end.
SETTLE_SECONDS = 10
MEASURED_SECONDS = 30


class Idle(RecoveryScenario):
    """Each task has counted some records; the measurement covers a time without records."""

    unit, more_is_better = "% of a core", False

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.name = f"idle-{tasks}"
        self.title = f"tasks without input: {tasks:,}"
        self._workload = Workload(RECORDS)

    @override
    def prepare(self, bootstrap_servers: str) -> str:
        topic = f"benchmark-{self.name}"
        load_topic(bootstrap_servers, topic, self._workload.purchases(), RECORDS, self.tasks)
        return topic

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        """Measure; first_answer_seconds is the time of the last task's first result."""
        run.partitions = self.tasks
        with running(run), run.committed() as committed:
            begin = time.monotonic()
            program = run.start(THREADS)
            run.wait_until(lambda: sum(committed().values()) == RECORDS, "the answers of all tasks")
            answered = time.monotonic() - begin
            time.sleep(SETTLE_SECONDS)
            program.look()
            before, begin = program.cpu_seconds, time.monotonic()
            time.sleep(MEASURED_SECONDS)
            program.look()
            used = (program.cpu_seconds - before) / (time.monotonic() - begin)
        problem = check_topic(run.bootstrap_servers, run.output, CountsCheck(self._workload.counts()))
        if problem:
            raise BenchmarkError(f"wrong output: {problem}")
        return Recovered(used * 100, answered, program.rss_bytes, program.cpu_seconds)


IDLE_SCENARIOS: tuple[RecoveryScenario, ...] = (Idle(1), Idle(100), Idle(1_000))
