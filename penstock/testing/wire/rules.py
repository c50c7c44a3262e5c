"""Rules: the actions of exchanges."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .exchange import Action
from .framing import API_NAMES, Request, WireError

_APIS = frozenset(API_NAMES.values())
_PASS = Action()


@dataclass(frozen=True)
class Rule:
    """An action and its conditions. Without conditions it applies to every exchange.

    api: Kafka's name, e.g. "EndTxn". client: a pattern for the client id, e.g. "*-producer". broker: its node id. nth:
    only the nth matching exchange, counted from 1. probability: for each matching exchange. times: the maximum number
    of applications. Raises WireError for an API that Kafka does not have.
    """

    action: Action
    api: str | None = None
    client: str | None = None
    broker: int | None = None
    nth: int | None = None
    probability: float = 1.0
    times: int | None = None

    def __post_init__(self) -> None:
        if self.api is not None and self.api not in _APIS:
            raise WireError(f"Kafka has no API {self.api}; it has {', '.join(sorted(_APIS))}")


class Rules:
    """Chooses the first rule that applies. The same exchanges in the same order get the same actions."""

    def __init__(self, rules: Iterable[Rule], seed: int) -> None:
        self._rules = tuple(rules)
        self._chance = [random.Random(f"{seed}/{number}") for number in range(len(self._rules))]
        self._fitted = [0] * len(self._rules)
        self._applied = [0] * len(self._rules)

    def choose(self, request: Request, broker: int | None) -> tuple[Action, bool]:
        """Return the action for an exchange, and whether it is that of a rule."""
        for number, rule in enumerate(self._rules):
            if _fits(rule, request, broker) and self._applies(number, rule):
                self._applied[number] += 1
                return rule.action, True
        return _PASS, False

    def _applies(self, number: int, rule: Rule) -> bool:
        self._fitted[number] += 1
        drawn = self._chance[number].random()  # at every exchange, so that the next draws do not depend on times
        return (
            rule.nth in (None, self._fitted[number])
            and drawn < rule.probability
            and (rule.times is None or self._applied[number] < rule.times)
        )


def _fits(rule: Rule, request: Request, broker: int | None) -> bool:
    return (
        rule.api in (None, request.api)
        and rule.broker in (None, broker)
        and (rule.client is None or fnmatchcase(request.client_id, rule.client))
    )
