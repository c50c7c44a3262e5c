"""Makes all stream threads of a running application hold at a commit, read no further than some offsets, or stop.

Those of its other hosts are reached over HTTP. See workers/thread/commit_hold.py and input_limit.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import EndHold, HeldTasks, HoldAtCommit, LimitInput
from penstock.workers.group.streams_metadata import HostInfo

from ..supervisor import Supervisor
from .queries import Answers
from .store_routing import QueryError

#: Time limit for the answers to the end of a hold, and to a limit, in seconds: the stream threads only finish a batch.
END_SECONDS = 20.0

Part = dict[str, Any]


class CommandedHosts(Protocol):
    """The other hosts of an application; see http/forwarding.py."""

    def carry_out(self, host: HostInfo, command: str, arguments: Mapping[str, object], timeout: float) -> Part:
        """Return the answer of ThisHost's method on another host. timeout: in seconds. Raises QueryError."""


class ThisHost:
    """The stream threads of this host. All errors are StreamsErrors."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def hold(self, hold: int, seconds: float) -> Part:
        """Make all stream threads commit and hold, for this time (s) at most. hold: any number, for end_hold().

        Returns ``tasks``, the active tasks; ``topics``, by sub-topology: see TopologyTopics. Raises StreamsError if one
        of them does not hold; then none does.
        """
        answers, limit_ms = Answers(), int(seconds * 1000)
        try:
            results = self._supervisor.ask(lambda number: HoldAtCommit(number, hold, limit_ms), answers, seconds)
            errors = sorted({result.error for result in results if result.error is not None})
            if answers.has_gaps or not results:
                errors.append("A stream thread is being replaced; try again")
        except TimeoutError:
            results, errors = [], [f"Not all stream threads have committed within {seconds:g} s"]
        if errors:
            self.end_hold(hold)
            raise StreamsError("; ".join(errors))
        held: list[HeldTasks] = [result.value for result in results]
        topics = {
            str(number): {kind: [*names] for kind, names in asdict(found).items()}  # as JSON from another host has it
            for number, found in held[0].topics.items()
        }
        return {"tasks": sorted(task for each in held for task in each.tasks), "topics": topics}

    def end_hold(self, hold: int) -> Part:
        """Make all stream threads continue.

        Returns ``changed``: None if all of them have held until now, with the same tasks; otherwise the reason.
        """
        answers = Answers()
        try:
            results = self._supervisor.ask(lambda number: EndHold(number, hold), answers, END_SECONDS)
        except TimeoutError:
            return {"changed": f"not all stream threads have answered within {END_SECONDS:g} s"}
        reasons = sorted({result.value for result in results if result.value is not None})
        if answers.has_gaps or not results:
            reasons.append("a stream thread was replaced during the hold")
        return {"changed": "; ".join(reasons) or None}

    def limit_input(self, offsets: Mapping[str, Sequence[int]], seconds: float) -> Part:
        """Make all stream threads read no further than these offsets, for this time (s) or until the next call.

        offsets: by topic, of its partitions. A stream thread that is being replaced does not get them. Raises
        StreamsError if not all of the others have answered within END_SECONDS.
        """
        limits = {TopicPartition(topic, n): at for topic, found in offsets.items() for n, at in enumerate(found)}
        limit_ms = int(seconds * 1000)
        try:
            self._supervisor.ask(lambda number: LimitInput(number, limits, limit_ms), Answers(), END_SECONDS)
        except TimeoutError:
            raise StreamsError(f"Not all stream threads have answered within {END_SECONDS:g} s; try again") from None
        return {}

    def stop(self) -> Part:
        """Begin to stop cleanly; the members leave the group."""
        self._supervisor.shut_down(leave_group=True)
        return {}


class AllHosts:
    """The stream threads of all hosts. All errors are StreamsErrors.

    remote: without it only this host is reached. A host that is not known yet, or has no application.server, is left
    out: the tasks of hold() show whether one is missing.
    """

    def __init__(self, supervisor: Supervisor, remote: CommandedHosts | None = None) -> None:
        self._supervisor = supervisor
        self._remote = remote
        self._here = ThisHost(supervisor)

    def hold(self, seconds: float) -> Part:
        """As ThisHost.hold(), for all hosts. Returns also ``hold``, the number for end_hold()."""
        number = secrets.randbits(48)
        try:
            parts = self._each("hold", {"hold": number, "seconds": seconds}, seconds)
            if any(part["topics"] != parts[0]["topics"] for part in parts):
                raise StreamsError("The hosts run different versions of the topology; wait until all have the same one")
        except StreamsError:
            self.end_hold(number)
            raise
        tasks = sorted(task for part in parts for task in part["tasks"])
        return {"hold": number, "tasks": tasks, "topics": parts[0]["topics"]}

    def end_hold(self, hold: int) -> Part:
        """As ThisHost.end_hold(), for all hosts; one that cannot be reached continues by itself."""
        try:
            parts = self._each("end_hold", {"hold": hold})
        except StreamsError as error:
            return {"changed": str(error)}
        reasons = sorted({part["changed"] for part in parts if part["changed"] is not None})
        return {"changed": "; ".join(reasons) or None}

    def limit_input(self, offsets: Mapping[str, Sequence[int]], seconds: float) -> Part:
        """As ThisHost.limit_input(), for all hosts."""
        self._each("limit_input", {"offsets": offsets, "seconds": seconds})
        return {}

    def stop(self) -> Part:
        """As ThisHost.stop(), for all hosts."""
        self._each("stop", {})
        return {}

    def _each(self, command: str, arguments: Mapping[str, object], seconds: float = 0) -> list[Part]:
        """Return the answers of all hosts, this one first. Raises StreamsError after all have answered."""
        here = partial(getattr(self._here, command), **arguments)
        calls: list[Callable[[], Part]] = [here]
        if self._remote is not None:
            carry_out, timeout = self._remote.carry_out, seconds + END_SECONDS
            others = self._supervisor.queries.metadata.others()
            calls += [partial(carry_out, other.host_info, command, arguments, timeout) for other in others]
        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(call) for call in calls]
        errors = {str(error) for future in futures if (error := _failure(future.exception())) is not None}
        if errors:
            raise StreamsError("; ".join(sorted(errors)))
        return [future.result() for future in futures]


def _failure(error: BaseException | None) -> BaseException | None:
    """Return the error of a host; raises one that is not meant for the caller."""
    if error is not None and not isinstance(error, StreamsError | QueryError):
        raise error
    return error
