"""Every public method of Kafka Streams is listed in docs/java-methods.md, and the list is correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.java import public_methods
from tests.java.public_methods import Method, in_penstock, page, table

PAGE = Path(__file__).parents[2] / "docs" / "java-methods.md"


@pytest.mark.slow  # it downloads a jar
def test_the_page_matches_the_jars_and_penstock() -> None:
    assert PAGE.read_text("utf-8") == page(table())


def test_the_other_page_has_the_same_numbers() -> None:
    numbers = PAGE.read_text("utf-8").partition("**")[2].partition("**")[0]
    assert f"its name here: {numbers}." in (PAGE.parent / "coming-from-java.md").read_text("utf-8")


def test_the_error_names_an_unlisted_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_methods, "java_methods", lambda: iter([("KStream", ["filter", "madeUp"])]))
    with pytest.raises(LookupError, match=r"no name in Penstock: KStream\.madeUp"):
        table()


@pytest.mark.parametrize(
    ("owner", "name", "here"),
    [
        ("KStream", "flatMapValues", "`KStream.flat_map_values`"),
        ("FixedKeyRecord", "withValue", "`Record.with_value`"),
        ("Consumed", "withName", "arguments of `StreamsBuilder.stream` and `table`"),
        ("Windowed", "toString", "`repr()`"),
    ],
)
def test_how_a_method_is_looked_up(owner: str, name: str, here: str) -> None:
    assert in_penstock(owner, name) == Method(f"{owner}.{name}", here)
