"""Reads of state over HTTP while processes are killed: no response is older than the output committed before the
request.

A client requests the tally of a key. A response may include records that are not committed yet, so the next one may be
lower again after a crash: a read shows processed records (docs/http.md). But it must include at least what a
read_committed reader had seen in the output before the request was sent (otherwise *stale*). It must be a possible
tally (otherwise *impossible*: records, sum and last must agree), of records that exist at the end (otherwise *alien*).
Without exactly-once, a crash may leave less in the changelog than in the output, and duplicates in both: only *alien*
is checked.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from tests.chaos.checkers.report import Report
from tests.chaos.program import HTTP_TOKEN

TIMEOUT_SECONDS = 10.0
#: Seconds between two requests.
PAUSE_SECONDS = 0.02
OK = 200
#: The tally of a key without records.
NOTHING: Mapping[str, int] = {"records": 0, "sum": 0, "last": 0, "breaks": 0}


@dataclass(frozen=True)
class Answer:
    """floor: the last number of the key that a reader had seen when the request was sent."""

    key: str
    floor: int
    tally: Mapping[str, Any]


class Queries:
    """Judges responses. exact: exactly-once."""

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._answers = 0
        self._faults: list[str] = []
        self._highest: dict[str, int] = {}
        #: Number of failed requests by reason.
        self.refused: Counter[str] = Counter()

    def take(self, answer: Answer) -> None:
        """Add a response."""
        self._answers += 1
        last = int(answer.tally["last"])
        self._highest[answer.key] = max(self._highest.get(answer.key, 0), last)
        if not self._exact:
            return
        if last < answer.floor:
            self._faults.append(f"stale: {answer.key} was answered with {last}, {answer.floor} was committed before")
        if answer.tally != {"records": last, "sum": last * (last + 1) // 2, "last": last, "breaks": 0}:
            self._faults.append(f"impossible: {answer.key} was answered with {dict(answer.tally)}")

    def report(self, expected: Mapping[str, int]) -> Report:
        """Return the report. expected: the last number of each key at the end."""
        for key, last in self._highest.items():
            if last > expected.get(key, 0):
                self._faults.append(f"alien: {key} was answered with {last}, its last record is {expected.get(key, 0)}")
        report = Report.of("queries", self._answers, "answers", self._faults)
        refused = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        return Report(report.name, f"{report.examined} (no answer: {refused or 'none'})", report.faults)


class Client(threading.Thread):
    """Requests keys from hosts until it is ended. floor: the number of a key that a reader has seen so far."""

    def __init__(
        self,
        ports: Sequence[int],
        store: str,
        keys: Sequence[str],
        floor: Callable[[str], int],
        queries: Queries,
        seed: int,
    ) -> None:
        super().__init__(name="queries", daemon=True)
        self._ports, self._store, self._keys = ports, store, keys
        self._floor, self._queries = floor, queries
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Send requests until end()."""
        try:
            while not self._ended.wait(PAUSE_SECONDS):
                self._ask(self._rng.choice(self._ports), self._rng.choice(self._keys))
        except BaseException as error:  # noqa: BLE001  end() raises it
            self._error = error

    def end(self) -> None:
        """Send no more requests. Raises the error if one occurred."""
        self._ended.set()
        self.join()
        if self._error is not None:
            raise self._error

    def _ask(self, port: int, key: str) -> None:
        floor = self._floor(key)
        connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        try:
            path = f"/stores/{self._store}/{key}"
            connection.request("GET", path, headers={"Authorization": f"Bearer {HTTP_TOKEN}"})
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:  # hosts are killed often, also while they respond
            self._queries.refused[type(error).__name__] += 1
            return
        finally:
            connection.close()
        if body.get("error", {}).get("code") == "NO_SUCH_KEY":
            self._queries.take(Answer(key, floor, NOTHING))
        elif response.status != OK:
            self._queries.refused[body["error"]["code"]] += 1
        else:
            self._queries.take(Answer(key, floor, body["rows"][0]["value"]))
