"""Iteration orders of Java's collections."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.topology.common.java_collections import TreeSet, hash_map_order, hash_set_order, set_hash, string_hash


def test_hash_codes_are_javas() -> None:
    assert [string_hash(text) for text in ("", "a", "abc")] == [0, 97, 96354]
    # "Aa" and "BB" are the classic pair with the same hash code.
    assert string_hash("Aa") == string_hash("BB") == 2112
    assert set_hash(["a", "abc"]) == 97 + 96354


def test_a_hash_map_iterates_by_bucket() -> None:
    # Hash codes of one-letter names are their code points: "p" (112) is in bucket 0 of 16, "a" (97) in bucket 1.
    assert hash_map_order(["a", "p", "b"]) == ["p", "a", "b"]


def test_names_in_one_bucket_keep_their_order() -> None:
    assert hash_map_order(["BB", "Aa"]) == ["BB", "Aa"]
    assert hash_map_order(["Aa", "BB"]) == ["Aa", "BB"]


def test_a_copied_set_of_twelve_has_more_buckets_than_a_grown_one() -> None:
    names = [chr(code) for code in range(ord("a"), ord("a") + 12)] + []
    names[0] = "0"  # 48: bucket 0 of 16, bucket 16 of 32
    assert hash_map_order(names)[0] == "0"
    assert hash_set_order(names)[0] != "0"


@given(st.lists(st.integers()))
def test_a_tree_set_with_a_steady_order_is_sorted(values: list[int]) -> None:
    tree: TreeSet[int] = TreeSet(lambda one, other: (one > other) - (one < other))
    for value in values:
        tree.add(value)
    assert list(tree) == sorted(set(values))


def test_a_tree_set_is_balanced() -> None:
    """After 1, 2, 3 the root is 2: the place of 0 depends on 2, not on 1."""
    sizes = {"zero": 0, "one": 1, "two": 2, "three": 3}
    tree: TreeSet[str] = TreeSet(lambda one, other: sizes[one] - sizes[other])
    for name in ("one", "two", "three"):
        tree.add(name)
    sizes["two"] = -5
    tree.add("zero")
    assert list(tree) == ["one", "two", "zero", "three"]


def test_a_tree_set_keeps_its_shape_when_the_order_changes() -> None:
    """Existing elements keep their place, and describe() shows that. Sorted again, "a" would be the last."""
    sizes = {"a": 1, "b": 2, "c": 3}
    tree: TreeSet[str] = TreeSet(lambda one, other: sizes[one] - sizes[other])
    tree.add("a")
    tree.add("b")
    sizes["a"] = 9
    tree.add("c")
    assert list(tree) == ["c", "a", "b"]
