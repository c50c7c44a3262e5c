"""Reads of state over HTTP while processes are killed: no answer is older than what was committed before the question.

What is asked for is the tally of a key. An answer may be of records that are not committed yet, and so the next one may
be lower again, after a crash: a read shows what is processed (docs/http.md). But it has to hold at least what a
read_committed reader had seen in the output before the question was sent (*stale*), has to be a tally that there can be
(*impossible*: records, sum and last fit each other), and of records that exist in the end (*alien*). Without
exactly-once a crash may leave less in the changelog than in the output, and doubles in both: only *alien* is left.
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

TIMEOUT_SECONDS = 10.0
#: Between two questions.
PAUSE_SECONDS = 0.02
OK = 200
#: The tally of a key that has none.
NOTHING: Mapping[str, int] = {"records": 0, "sum": 0, "last": 0, "breaks": 0}


@dataclass(frozen=True)
class Answer:
    """floor: the last number of the key that a reader had seen when the question was sent."""

    key: str
    floor: int
    tally: Mapping[str, Any]


class Queries:
    """Judges answers. exact: exactly-once."""

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._answers = 0
        self._faults: list[str] = []
        self._highest: dict[str, int] = {}
        #: How often there was no answer, by the reason.
        self.refused: Counter[str] = Counter()

    def take(self, answer: Answer) -> None:
        """Note an answer."""
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
        """Judge. expected: the last number of each key in the end."""
        for key, last in self._highest.items():
            if last > expected.get(key, 0):
                self._faults.append(f"alien: {key} was answered with {last}, its last record is {expected.get(key, 0)}")
        report = Report.of("queries", self._answers, "answers", self._faults)
        refused = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        return Report(report.name, f"{report.examined} (no answer: {refused or 'none'})", report.faults)


class Client(threading.Thread):
    """Asks hosts for keys until it is ended. floor: what a reader has seen of a key by now."""

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
        """Ask until end()."""
        try:
            while not self._ended.wait(PAUSE_SECONDS):
                self._ask(self._rng.choice(self._ports), self._rng.choice(self._keys))
        except BaseException as error:  # noqa: BLE001  end() raises it
            self._error = error

    def end(self) -> None:
        """Ask no more. Raises what went wrong."""
        self._ended.set()
        self.join()
        if self._error is not None:
            raise self._error

    def _ask(self, port: int, key: str) -> None:
        floor = self._floor(key)
        connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", f"/stores/{self._store}/{key}")
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:  # hosts are killed all the time, in answers too
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
