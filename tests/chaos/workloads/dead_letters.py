"""Records that fail until the code is fixed, and are replayed while everything is killed, including the replay.

Every sixth record is refused while a file is missing, which is created and deleted repeatedly, and becomes a dead
letter. ``penstock dlq replay --all`` replays letters all the time, and is sometimes killed in the middle. A record may
become a letter again, several times. In the end each record must be output, and with exactly-once only once. Its order
among the others of its key is lost with the first letter, so the order is not judged. A tally of each key, which does
not depend on the order, shows that a refused record is also counted once, and gives faults of state something to hit.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from tests.chaos import program
from tests.chaos.checker import Sight, Verdict, read_table
from tests.chaos.checkers import Report
from tests.chaos.feeder import NumberFeeder, Numbering
from tests.chaos.hosts import ROOT
from tests.chaos.workloads.workload import Setting, Workload

LETTERS = "letters"
CHANGELOG = f"{program.APPLICATION_ID}-{program.TALLY_STORE}-changelog"
#: The share of records that are refused until the code is fixed.
POISON_SHARE = 1 / 6
#: How long a replay may run before it is killed, in seconds; and the share of replays that are not killed.
LIFE_SECONDS = (0.3, 4.0)
LEFT_ALONE = 0.5
REPLAY_SECONDS = 120.0
#: Seconds between two replays at the end, while the last records are awaited.
LAST_PAUSE_SECONDS = 5.0
#: The header of a letter that identifies its record.
PLACE_HEADERS = ("__streams.errors.topic", "__streams.errors.partition", "__streams.errors.offset")


def _poison(rng: random.Random) -> Mapping[str, Any]:
    return {"poison": True} if rng.random() < POISON_SHARE else {}


class Replayer(threading.Thread):
    """Fixes and breaks the code, and replays letters. fixed: the file whose presence means fixed."""

    def __init__(self, config: Path, fixed: Path, seed: int) -> None:
        super().__init__(name="replayer", daemon=True)
        self.replays = self.kills = 0
        self._config, self._fixed = config, fixed
        self._rng = random.Random(seed)
        self._ended = threading.Event()

    def run(self) -> None:
        """Replay until end()."""
        while not self._ended.wait(self._rng.uniform(0, 2)):
            if self._rng.random() < 0.5:
                self._fixed.touch()
            else:
                self._fixed.unlink(missing_ok=True)
            alone = self._rng.random() < LEFT_ALONE
            self.replay(None if alone else self._rng.uniform(*LIFE_SECONDS))

    def replay(self, life_seconds: float | None) -> None:
        """Replay all letters; a replay that fails because the broker is down is repeated later."""
        replay = ["dlq", "replay", "--all", "--execute", "--config", str(self._config)]
        command = [sys.executable, "-m", "penstock.cli", *replay]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.replays += 1
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                process.wait(life_seconds or REPLAY_SECONDS)
            except subprocess.TimeoutExpired:
                self.kills += 1
                process.kill()

    def end(self) -> None:
        """Stop replaying, and leave the code fixed."""
        self._ended.set()
        self.join()
        self._fixed.touch()


class DeadLetters(Workload):
    """Every sixth record is refused at times, and ``penstock dlq replay`` replays the refused records."""

    name: ClassVar[str] = "dead-letters"
    topology: ClassVar[str] = "tests.chaos.program:dead_letters"

    def __init__(self, setting: Setting, directory: Path) -> None:
        super().__init__(setting, directory)
        self._fixed = directory / "fixed"
        self._written: set[tuple[str, int]] = set()
        self._copies: Counter[tuple[str, int]] = Counter()
        self._letters: Counter[tuple[bytes | None, ...]] = Counter()
        self._aliens = 0
        self._next_replay = 0.0

    @property
    @override
    def topics(self) -> Mapping[str, Mapping[str, str]]:
        return {topic: {} for topic in self.followed}

    @property
    @override
    def followed(self) -> tuple[str, ...]:
        return (program.NUMBERS, program.COPIES, LETTERS)

    @property
    @override
    def moving(self) -> tuple[str, ...]:
        return (program.COPIES,)

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        return {program.MENDED_VARIABLE: str(self._fixed)}

    @override
    def settings(self, host: int) -> Mapping[str, object]:
        return {
            "processing.exception.handler": "log_and_continue",
            "errors.dead.letter.queue.topic.name": LETTERS,
        }

    @override
    def start(self, bootstrap_servers: str) -> None:
        config = self.directory / "replay.toml"
        settings = {
            "application.id": program.APPLICATION_ID,
            "bootstrap.servers": bootstrap_servers,
            "errors.dead.letter.queue.topic.name": LETTERS,
        }
        config.write_text("".join(f'"{key}" = {value!r}\n' for key, value in settings.items()))
        numbering = Numbering(program.KEYS, extras=_poison)
        self._feeder = NumberFeeder(bootstrap_servers, program.NUMBERS, numbering, self.setting.seed)
        self._feeder.start()
        self._replayer = Replayer(config, self._fixed, self.setting.seed)
        self._replayer.start()

    @override
    def see(self, record: Sight) -> None:
        value = record.content
        if record.topic == LETTERS:
            self._letters[tuple(dict(record.headers)[name] for name in PLACE_HEADERS)] += 1
        elif record.topic == program.NUMBERS:
            self._written.add((record.name, value["n"]))
        elif value.get("aborted"):
            self._aliens += 1
        else:
            self._copies[record.name, value["n"]] += 1

    @override
    def finish(self) -> None:
        self._feeder.finish()
        self._replayer.end()

    @property
    @override
    def aborted(self) -> int:
        return self._feeder.aborted

    @override
    def sent(self) -> int:
        return len(self._written)

    @override
    def copied(self) -> int:
        return len(self._copies)

    def complete(self) -> bool:
        """Return True if all records are output; otherwise replay new letters now and then."""
        if len(self._written) == self._feeder.sent() and self._written <= self._copies.keys():
            return True
        if time.monotonic() > self._next_replay:
            self._replayer.replay(None)
            self._next_replay = time.monotonic() + LAST_PAUSE_SECONDS
        return False

    @override
    def verdict(self, bootstrap_servers: str) -> Verdict:
        return self.judge(read_table(bootstrap_servers, CHANGELOG))

    def judge(self, tallies: Mapping[str, Mapping[str, Any]]) -> Verdict:
        """Return the verdict. tallies: of the changelog, by key."""
        lost = len(self._written - self._copies.keys())
        aliens = self._aliens + len(self._copies.keys() - self._written)
        doubled = sum(count - 1 for count in self._copies.values())
        ahead, state = 0, []
        for key, wanted in self._replayed_tallies().items():
            found = {field: tallies.get(key, {}).get(field, 0) for field in wanted}
            if (self.setting.exact and found != wanted) or any(found[field] < wanted[field] for field in wanted):
                state.append(f"changelog of the tallies, {key}: {found} instead of {wanted}")
            ahead += found != wanted
        return Verdict(
            self.setting.judged_as, lost, doubled, 0, aliens, tuple(state), 0 if self.setting.exact else ahead
        )

    def _replayed_tallies(self) -> dict[str, dict[str, int]]:
        """Return the expected tallies, without fields that depend on the order of a key's records."""
        tallies: dict[str, dict[str, int]] = {}
        for key, number in self._written:
            tally = tallies.setdefault(key, {"records": 0, "sum": 0})
            tally["records"] += 1
            tally["sum"] += number
        return tallies

    @override
    def reports(self, bootstrap_servers: str) -> list[Report]:
        """With exactly-once each failure has one letter."""
        twice = [f"{count} letters about {place}" for place, count in self._letters.items() if count > 1]
        report = Report.of("dead letters", self._letters.total(), "letters", twice if self.setting.exact else [])
        replays = f", {self._replayer.replays} replays of which {self._replayer.kills} were killed"
        return [Report(report.name, report.examined + replays, report.faults)]
