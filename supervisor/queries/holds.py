"""Makes all stream threads of a running application hold at a commit, or read no further than some offsets.

See workers/thread/commit_hold.py and input_limit.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import EndHold, HeldTasks, HoldAtCommit, LimitInput

from ..supervisor import Supervisor
from .queries import Answers

#: Time limit for the answers to the end of a hold, and to a limit, in seconds: the stream threads only finish a batch.
END_SECONDS = 20.0


def begin(supervisor: Supervisor, seconds: float) -> dict[str, Any]:
    """Make all stream threads commit and hold, for this time (s) at most.

    Returns ``hold``, the number for end(); ``tasks``, the active tasks here; ``topics``, by sub-topology: see
    TopologyTopics. Raises StreamsError if one of them does not hold; then none does.
    """
    hold, answers = secrets.randbits(48), Answers()
    limit_ms = int(seconds * 1000)
    try:
        results = supervisor.ask(lambda number: HoldAtCommit(number, hold, limit_ms), answers, seconds)
        errors = sorted({result.error for result in results if result.error is not None})
        if answers.has_gaps or not results:
            errors.append("A stream thread is being replaced; try again")
    except TimeoutError:
        results, errors = [], [f"Not all stream threads have committed within {seconds:g} s"]
    if errors:
        end(supervisor, hold)
        raise StreamsError("; ".join(errors))
    held: list[HeldTasks] = [result.value for result in results]
    topics = {str(number): asdict(found) for number, found in held[0].topics.items()}
    return {"hold": hold, "tasks": sorted(task for each in held for task in each.tasks), "topics": topics}


def end(supervisor: Supervisor, hold: int) -> dict[str, Any]:
    """Make all stream threads continue.

    Returns ``changed``: None if all of them have held until now, with the same tasks; otherwise the reason.
    """
    answers = Answers()
    try:
        results = supervisor.ask(lambda number: EndHold(number, hold), answers, END_SECONDS)
    except TimeoutError:
        return {"changed": f"not all stream threads have answered within {END_SECONDS:g} s"}
    reasons = sorted({result.value for result in results if result.value is not None})
    if answers.has_gaps or not results:
        reasons.append("a stream thread was replaced during the hold")
    return {"changed": "; ".join(reasons) or None}


def limit_input(supervisor: Supervisor, offsets: Mapping[str, Sequence[int]], seconds: float) -> None:
    """Make all stream threads read no further than these offsets, for this time (s) or until the next call.

    offsets: by topic, of its partitions. A stream thread that is being replaced does not get them. Raises StreamsError
    if not all of the others have answered within END_SECONDS.
    """
    limits = {TopicPartition(topic, n): at for topic, found in offsets.items() for n, at in enumerate(found)}
    limit_ms = int(seconds * 1000)
    try:
        supervisor.ask(lambda number: LimitInput(number, limits, limit_ms), Answers(), END_SECONDS)
    except TimeoutError:
        raise StreamsError(f"Not all stream threads have answered within {END_SECONDS:g} s; try again") from None
