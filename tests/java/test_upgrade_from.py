"""``upgrade.from``: a Java member of an older version can read what Penstock writes for tables."""

from __future__ import annotations

import pytest

from tests.java.conftest import MakeHandover
from tests.java.handover import assert_as_one_uninterrupted_run
from tests.java.versions import NEWEST_FORMATS_SINCE, chosen_version, is_since
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

#: Long enough for a busy machine: a member that is removed counts records twice.
SESSION = {"session_timeout_ms": "20000"}


def test_an_older_member_reads_what_penstock_writes_for_tables(handover: MakeHandover) -> None:
    """Both write to the repartition topic of a grouped table and to those of a foreign-key join, and read them."""
    older = {} if is_since(NEWEST_FORMATS_SINCE) else {"upgrade_from": chosen_version().rpartition(".")[0]}
    application = handover("tables", with_people=True, **SESSION)
    java = application.start_java("java")
    application.feed()
    penstock = application.start_penstock("penstock", **older)
    eventually(application.shared, application.members, PATIENCE_SECONDS)
    for _ in range(3):
        application.feed()
        application.settle()
    java.stop()
    application.feed()
    application.settle()
    java = application.start_java("java")
    eventually(application.shared, application.members, PATIENCE_SECONDS)
    application.feed()
    application.settle()
    penstock.stop()
    application.feed()
    application.settle()
    java.stop()
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", with_people=True, **SESSION))
