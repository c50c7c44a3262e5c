"""Deadlines exclude time in which a client is not served."""

from __future__ import annotations

from penstock.clients.served_clock import STEP_MS, ServedClock


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_clock_ms(self) -> int:
        return 7


def test_a_long_pause_counts_as_a_step() -> None:
    hand, pauses = Hand(), list[int]()
    clock = ServedClock(hand, pauses.append)
    began = clock.monotonic_ms()
    hand.now_ms += STEP_MS
    assert clock.monotonic_ms() == began + STEP_MS
    hand.now_ms += 125_000
    assert clock.monotonic_ms() == began + 2 * STEP_MS
    assert pauses == [125_000 - STEP_MS]
    hand.now_ms += 5
    assert clock.monotonic_ms() == began + 2 * STEP_MS + 5
    assert clock.wall_clock_ms() == 7


def test_a_wait_for_the_network_counts_at_most_its_intended_length() -> None:
    hand, pauses = Hand(), list[int]()
    clock = ServedClock(hand, pauses.append)
    began = clock.monotonic_ms()
    clock.begin_wait(10_000)
    hand.now_ms += 10_050
    assert clock.monotonic_ms() == began + 10_050
    clock.begin_wait(10_000)
    hand.now_ms += 3  # something has arrived
    assert clock.monotonic_ms() == began + 10_053
    clock.begin_wait(1_000)
    hand.now_ms += 60_000  # the process was suspended
    assert clock.monotonic_ms() == began + 10_053 + 1_000 + STEP_MS
    assert pauses == [59_000 - STEP_MS]


def test_a_pause_before_a_wait_is_not_part_of_it() -> None:
    """The process was suspended between the two. Found by the simulation, seed 778."""
    hand, pauses = Hand(), list[int]()
    clock = ServedClock(hand, pauses.append)
    began = clock.monotonic_ms()
    hand.now_ms += 30_000
    clock.begin_wait(10_000)
    hand.now_ms += 3
    assert clock.monotonic_ms() == began + STEP_MS + 3
    assert pauses == [30_000 - STEP_MS]
