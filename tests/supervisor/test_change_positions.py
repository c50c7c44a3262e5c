"""The ids of subscriptions' events, the batches that subscribers share, and paths of keys that look like one."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.supervisor.http.forwarding import path_of
from penstock.supervisor.queries.change_position import ChangePosition
from penstock.supervisor.queries.store_routing import QueryError
from penstock.workers.control.messages import ReadStore

OFFSETS = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), min_size=1, max_size=5)


@given(st.uuids(), OFFSETS)
def test_an_id_is_read_as_it_was_written(topic_id: UUID, offsets: dict[int, int]) -> None:
    position = ChangePosition(topic_id, offsets)
    assert ChangePosition.parse(str(position)) == position
    assert "\n" not in str(position)


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="is no id of an event"):
        ChangePosition.parse(text)


@pytest.mark.parametrize("text", [f"{'0' * 32}.0-{2**63}", f"{'0' * 32}.0-1.00-2", f"{'0' * 32}", f"{'0' * 32}.0-1\n"])
def test_ids_that_are_nearly_right_are_refused(text: str) -> None:
    with pytest.raises(QueryError, match="is no id of an event"):
        ChangePosition.parse(text)


def test_a_forwarded_key_is_not_taken_for_a_subscription() -> None:
    assert path_of(ReadStore(0, "store", "changes")).startswith("/stores/store/%63hanges?")
    assert path_of(ReadStore(0, "store", "changed")).startswith("/stores/store/changed?")
