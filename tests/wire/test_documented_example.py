"""The example of docs/testing.md, against a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.hosts import ROOT
from tests.markdown import blocks


@pytest.mark.broker
def test_the_example_of_the_page_runs(bootstrap_servers: str, make_topic: Callable[[str], str]) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    (example,) = [block.text for block in blocks(page) if block.needs_broker]
    for name, used in (("127.0.0.1:9092", bootstrap_servers), ('"orders"', repr(make_topic("orders")))):
        assert name in example
        example = example.replace(name, used)
    namespace: dict[str, Any] = {}
    exec(compile(example, "testing.md", "exec"), namespace)
