"""Many requests to two hosts, while a stream thread of one of them is killed and its tasks return."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import pytest
from broker_stage import KEYS, PARTITIONS, Counting, commit_of_all, replaced, shared_by, tasks
from http_client import Answer, HttpClient, host_config

from penstock import KafkaStreams
from tests.waiting import eventually

pytestmark = pytest.mark.broker

ROUNDS = 3
ASKERS = 4
#: Each client stops after this many requests, or after this many good responses since the tasks returned.
QUESTIONS_MAX, GOOD_SINCE = 2_000, 20
#: Codes of temporary errors.
TRY_AGAIN = {"RESTORING", "NOT_HERE", "INCOMPLETE", "HOST_UNREACHABLE", "NOT_RUNNING", "TIMEOUT"}


class Storm:
    """Clients in separate threads. answers: number of responses by kind; wrong: responses that no host may give."""

    def __init__(self, ports: list[int]) -> None:
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.calm = threading.Event()
        self._ports = ports
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(random.Random(seed),)) for seed in range(ASKERS)]

    def __enter__(self) -> Storm:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.calm.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, choice: random.Random) -> None:
        good_since = 0
        for _ in range(QUESTIONS_MAX):
            http = HttpClient(choice.choice(self._ports))
            key = choice.randrange(KEYS + 1)  # the last one represents all
            path = f"/stores/counts/key-{key}" if key < KEYS else "/stores/counts?limit=1000"
            try:
                kind, right = judged(http.ask(path), KEYS if key == KEYS else 1)
            except (OSError, HTTPException, json.JSONDecodeError) as error:  # both hosts are up: they must respond
                kind, right = repr(error), False
            with self._lock:
                self.answers[kind] += 1
                if not right:
                    self.wrong.append(f"{path}: {kind}")
            good_since += self.calm.is_set() and kind == "right"
            if good_since >= GOOD_SINCE:
                return


def judged(answer: Answer, rows: int) -> tuple[str, bool]:
    """Return the kind of a response, and whether it is correct or says to retry."""
    if answer.status == 200:
        values = [row["value"] for row in answer.json["rows"]]
        return ("right", True) if values == [ROUNDS] * rows else (f"wrong values {values}", False)
    code = str(answer.error["code"])
    again = answer.error.get("retry_after_seconds", 0)
    fine = answer.status == 503 and code in TRY_AGAIN and again >= 1 and answer.headers["retry-after"] == str(again)
    return code if fine else f"{answer.status} {answer.error}", fine


def test_every_response_is_correct_or_says_to_retry(counting: Counting, tmp_path: Path) -> None:
    counting.produce(ROUNDS)
    one, two = (
        KafkaStreams(counting.topology(), counting.config | host_config(tmp_path / name) | {"num.standby.replicas": 0})
        for name in ("one", "two")
    )
    with one, two:
        for streams in (one, two):
            streams.start()
        eventually(
            lambda: all(shared_by(streams, 1, PARTITIONS // 2) for streams in (one, two)),
            "each host has half of the tasks",
        )
        counting.wait_for_all_counts()
        commit_of_all(counting)
        (victim,), before = two.status(), tasks(two.status())
        with Storm([port for port in (one.http_port, two.http_port) if port is not None]) as storm:
            eventually(lambda: storm.answers["right"] >= 20, "the storm has begun")
            os.kill(victim.pid, signal.SIGKILL)
            eventually(lambda: replaced(two.status(), victim, before), "another process has the tasks")
        print(dict(storm.answers))
        assert storm.wrong == []
        assert storm.answers["right"] >= ASKERS * GOOD_SINCE
