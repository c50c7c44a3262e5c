"""Which exchanges match a rule, and that a plan follows from its seed; generated and rewritten responses. No broker."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.produce.v10.response import NodeEndpoint, ProduceResponse
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import Records, i32, i64Timedelta

from penstock.testing.wire import Drop, Fail, Plan, Rule, WireError
from penstock.testing.wire.exchange import BROKERS, rewrite
from penstock.testing.wire.framing import API_NAMES, Request, parse_request
from penstock.testing.wire.messages import decode_answer, encode_answer, error_codes
from penstock.testing.wire.plan import ERRORS
from penstock.testing.wire.refusals import error_of, refusal
from penstock.testing.wire.rules import Rules
from tests.chaos.hosts import ROOT
from tests.examples import examples

DROP = Drop(acted=False)
KEYS = {name: key for key, name in API_NAMES.items()}


def request(api: str, client_id: str = "c", version: int = 0) -> Request:
    return Request(KEYS[api], version, 7, client_id, b"")


def chosen(rule: Rule, requests: list[Request], *, broker: int | None = 1, seed: int = 0) -> list[int]:
    """Return the requests that match the rule."""
    rules = Rules([rule], seed)
    return [number for number, each in enumerate(requests) if rules.choose(each, broker)[1]]


# -- rules


def test_a_rule_without_conditions_matches_everything() -> None:
    assert chosen(Rule(DROP), [request("Fetch"), request("EndTxn")]) == [0, 1]


def test_a_rule_may_be_limited_to_an_api_a_client_and_a_broker() -> None:
    requests = [request("Fetch", "a-1"), request("EndTxn", "a-1"), request("EndTxn", "b-1")]
    rule = Rule(DROP, api="EndTxn", client="a-*", broker=1)
    assert chosen(rule, requests) == [1]
    assert chosen(rule, requests, broker=2) == []
    assert chosen(rule, requests, broker=None) == [], "not known yet"


def test_a_rule_counts_only_matching_requests() -> None:
    requests = [request(api) for api in ("EndTxn", "Fetch", "EndTxn", "Fetch", "EndTxn")]
    assert chosen(Rule(DROP, api="EndTxn", nth=2), requests) == [2]
    assert chosen(Rule(DROP, api="EndTxn", times=2), requests) == [0, 2]


def test_a_probability_selects_its_share_reproducibly() -> None:
    requests = [request("Fetch")] * 2_000
    hit = chosen(Rule(DROP, probability=0.25), requests, seed=3)
    assert 400 < len(hit) < 600
    assert chosen(Rule(DROP, probability=0.25), requests, seed=3) == hit
    assert chosen(Rule(DROP, probability=0.25), requests, seed=4) != hit


def test_the_first_matching_rule_applies() -> None:
    fail = Fail("NOT_COORDINATOR")
    rules = Rules([Rule(DROP, nth=2), Rule(fail)], seed=0)
    assert [rules.choose(request("EndTxn"), 1)[0] for _ in range(3)] == [fail, DROP, fail]


def test_misspelt_names_are_refused() -> None:
    with pytest.raises(WireError, match="no API EndTransaction"):
        Rule(DROP, api="EndTransaction")
    with pytest.raises(WireError, match="no error COORDINATOR_MISSING"):
        Fail("COORDINATOR_MISSING")


# -- plans


def test_a_plan_is_the_same_for_the_same_seed_in_any_process() -> None:
    command = [sys.executable, "-c", "from penstock.testing.wire import Plan; print(Plan.random(17))"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(Plan.random(17))
    assert Plan.random(18).rules != Plan.random(17).rules


def test_plans_contain_all_apis_and_all_actions() -> None:
    rules = [rule for seed in range(300) for rule in Plan.random(seed).rules]
    assert {rule.api for rule in rules} == set(ERRORS)
    kinds = {type(rule.action).__name__ for rule in rules}
    assert kinds == {"Blackhole", "Delay", "Dribble", "Drop", "Fail", "Hold", "Reset"}


# -- answers


st.register_type_strategy(Records, st.binary().map(Records))
# kio cannot read longer ones: it counts microseconds in 64 bits.
st.register_type_strategy(
    i64Timedelta, st.integers(0, 2**40).map(lambda ms: i64Timedelta.parse(timedelta(milliseconds=ms)))
)

VERSIONS = [
    (API_NAMES[key], version)
    for key, name in api_key_map.items()
    for version, kinds in schema_name_map[name].items()
    if API_NAMES[key] in ERRORS and EntityType.request in kinds
]


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_an_error_can_be_returned_for_every_api_of_a_plan(api: str, version: int) -> None:
    kind: Any = load_request_schema(KEYS[api], version)

    @settings(max_examples=examples(3), deadline=None)
    @given(st.from_type(kind))
    def check(body: Any) -> None:
        asked = parse_request(request_frame(kind, body))
        answer = decode_answer(asked, refusal(asked, error_of(ERRORS[api][0])))
        codes = set(error_codes(answer))
        assert codes <= {error_of(ERRORS[api][0])}
        if "error_code" in {field.name for field in fields(answer)}:
            assert codes  # without such a field, the codes are those of the listed items, of which there may be none

    check()


def request_frame(kind: Any, body: Any) -> bytes:
    buffer = io.BytesIO()
    header = kind.__header_schema__(
        request_api_key=kind.__api_key__, request_api_version=kind.__version__, correlation_id=7, client_id="c"
    )
    entity_writer(kind.__header_schema__)(buffer, header)
    entity_writer(kind)(buffer, body)
    return buffer.getvalue()


def test_the_addresses_of_new_leaders_are_rewritten() -> None:
    """Produce and Fetch responses name them since KIP-951."""
    asked = request("Produce", version=10)
    endpoint = NodeEndpoint(node_id=BrokerId(2), host="real", port=i32(9092), rack="r")
    answer = encode_answer(asked, ProduceResponse(responses=(), node_endpoints=(endpoint,)))

    async def place(node: int, host: str, port: int) -> tuple[str, int]:
        assert (node, host, port) == (2, "real", 9092)
        return "proxy", 1234

    (moved,) = decode_answer(asked, asyncio.run(rewrite(asked, answer, place))).node_endpoints
    assert (moved.node_id, moved.host, moved.port, moved.rack) == (2, "proxy", 1234, "r")


#: APIs between brokers and controllers, and an operator's requests to controllers.
NOT_FOR_CLIENTS = {"BeginQuorumEpoch", "DescribeQuorum", "EndQuorumEpoch", "FetchSnapshot", "UpdateRaftVoter", "Vote"}


def test_every_response_that_names_brokers_is_rewritten() -> None:
    """kio's types show which do: they have a host, with a node id beside it."""
    naming = set()
    for key, name in api_key_map.items():
        for version, kinds in schema_name_map[name].items():
            if EntityType.response in kinds and names_a_broker(load_response_schema(key, version)):
                naming.add(API_NAMES[key])
    assert naming - NOT_FOR_CLIENTS == set(BROKERS)


def names_a_broker(kind: Any) -> bool:
    names = {field.name for field in fields(kind)}
    if {"host", "port"} <= names and names & {"node_id", "broker_id"}:
        return True
    hints = get_type_hints(kind).values()
    inner = {part for hint in hints for choice in (hint, *get_args(hint)) for part in (choice, *get_args(choice))}
    return any(names_a_broker(part) for part in inner if is_dataclass(part))
