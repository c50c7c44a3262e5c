"""Iteration orders of Java's HashMap, TreeSet and PriorityQueue.

``Topology.describe()`` shows sets in Java's iteration order, and a node's stores are opened in that order. A
PriorityQueue orders punctuations, and a test's records, that are due at the same time. To match Kafka Streams, these
orders are reproduced, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_CAPACITY_MIN = 16


def string_hash(text: str) -> int:
    """Return String.hashCode() as an unsigned 32-bit number."""
    code = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code


def set_hash(names: Iterable[str]) -> int:
    """Return Set<String>.hashCode() as an unsigned 32-bit number."""
    return sum(map(string_hash, names)) & 0xFFFFFFFF


def _in_buckets(values: Iterable[T], capacity: int, hash_of: Callable[[T], int]) -> list[T]:
    """Order by bucket, and by insertion within a bucket."""

    def bucket(value: T) -> int:
        code = hash_of(value)
        return (code ^ code >> 16) & (capacity - 1)

    return sorted(values, key=bucket)


def hash_map_order(names: Iterable[str]) -> list[str]:
    """Return distinct names in the iteration order of a HashMap or HashSet to which they were added one by one."""
    return grown_hash_order(names, string_hash)


def grown_hash_order(values: Iterable[T], hash_of: Callable[[T], int]) -> list[T]:
    """Return distinct values as a HashMap or HashSet iterates over them. hash_of: hashCode(), as an unsigned number."""
    values = list(values)
    capacity = _CAPACITY_MIN
    while len(values) > capacity * 3 // 4:
        capacity *= 2
    return _in_buckets(values, capacity, hash_of)


def hash_set_order(names: Iterable[str]) -> list[str]:
    """Return distinct names as ``new HashSet<>(names)`` iterates over them: it starts larger than a growing one."""
    return copied_hash_order(names, string_hash)


def copied_hash_order(values: Iterable[T], hash_of: Callable[[T], int]) -> list[T]:
    """Return distinct values as ``new HashSet<>(values)`` iterates over them; see grown_hash_order."""
    values = list(values)
    return _in_buckets(values, _capacity_for(len(values)), hash_of)


def hash_set_order_of_sets(sets: Iterable[Collection[str]], size: int) -> list[Collection[str]]:
    """Return distinct sets as ``new HashSet<>(values)`` iterates over them. size: of values, which has duplicates."""
    return _in_buckets(sets, _capacity_for(size), set_hash)


def _capacity_for(size: int) -> int:
    """Return the initial capacity of a HashSet created from this many values."""
    needed = max(int(size / 0.75) + 1, _CAPACITY_MIN)
    return 1 << (needed - 1).bit_length()


class PriorityQueue(Generic[T]):
    """A binary heap that returns equal elements in the same order as Java's PriorityQueue.

    priority(element): the lowest is first; it may change while an element is not in the queue. elements: the initial
    ones, as from an unsorted collection.
    """

    def __init__(self, priority: Callable[[T], Any], elements: Iterable[T] = ()) -> None:
        self._priority = priority
        self._heap = list(elements)
        for place in reversed(range(len(self._heap) // 2)):
            self._sift_down(place, self._heap[place])

    def add(self, element: T) -> None:
        """Add an element."""
        self._heap.append(element)
        self._sift_up(len(self._heap) - 1, element)

    def peek(self) -> T | None:
        """Return the first element, None if there is none."""
        return self._heap[0] if self._heap else None

    def poll(self) -> T:
        """Remove the first element and return it; raises IndexError if there is none."""
        last = self._heap.pop()
        if not self._heap:
            return last
        first = self._heap[0]
        self._sift_down(0, last)
        return first

    def remove(self, element: T) -> None:
        """Remove an element; raises ValueError if it is not in the queue."""
        place = self._heap.index(element)
        last = self._heap.pop()
        if place < len(self._heap):
            self._sift_down(place, last)
            if self._heap[place] is last:
                self._sift_up(place, last)

    def clear(self) -> None:
        """Remove all elements."""
        self._heap.clear()

    def _sift_up(self, place: int, element: T) -> None:
        heap, priority = self._heap, self._priority
        while place > 0:
            parent = (place - 1) // 2
            if priority(element) >= priority(heap[parent]):
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = element

    def _sift_down(self, place: int, element: T) -> None:
        heap, priority = self._heap, self._priority
        half = len(heap) // 2
        while place < half:
            child = 2 * place + 1
            if child + 1 < len(heap) and priority(heap[child]) > priority(heap[child + 1]):
                child += 1
            if priority(element) <= priority(heap[child]):
                break
            heap[place] = heap[child]
            place = child
        heap[place] = element

    def __contains__(self, element: object) -> bool:
        return element in self._heap

    def __iter__(self) -> Iterator[T]:
        """Iterate in the order of the heap's array, not by priority."""
        return iter(list(self._heap))

    def __len__(self) -> int:
        return len(self._heap)


class _Entry(Generic[T]):
    __slots__ = ("left", "parent", "red", "right", "value")

    def __init__(self, value: T, parent: _Entry[T] | None) -> None:
        self.value = value
        self.parent = parent
        self.left: _Entry[T] | None = None
        self.right: _Entry[T] | None = None
        self.red = False


class TreeSet(Generic[T]):
    """A red-black tree that is never rebuilt, like Java's TreeSet.

    Kafka Streams changes fields that the comparator uses after elements were added, so the resulting order depends on
    the shape of the tree. A sorted list would give a different order.
    """

    def __init__(self, compare: Callable[[T, T], int]) -> None:
        self._compare = compare
        self._root: _Entry[T] | None = None

    def add(self, value: T) -> None:
        """Add a value unless the search path contains one that compares as equal."""
        entry, order = self._root, 0
        parent = None
        while entry is not None:
            parent = entry
            order = self._compare(value, entry.value)
            if order == 0:
                return
            entry = entry.left if order < 0 else entry.right
        added = _Entry(value, parent)
        if parent is None:
            self._root = added
        elif order < 0:
            parent.left = added
        else:
            parent.right = added
        self._balance(added)

    def __iter__(self) -> Iterator[T]:
        stack: list[_Entry[T]] = []
        entry = self._root
        while stack or entry is not None:
            while entry is not None:
                stack.append(entry)
                entry = entry.left
            entry = stack.pop()
            yield entry.value
            entry = entry.right

    def _balance(self, entry: _Entry[T]) -> None:
        """Restore the colors after an insertion: the textbook algorithm, which is also Java's."""
        entry.red = True
        while (parent := entry.parent) is not None and parent.red and (above := parent.parent) is not None:
            parent_is_left = parent is above.left
            uncle = above.right if parent_is_left else above.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                above.red = True
                entry = above
                continue
            if entry is (parent.right if parent_is_left else parent.left):
                self._rotate(parent, left=parent_is_left)
                entry, parent = parent, entry
            parent.red = False
            above.red = True
            self._rotate(above, left=not parent_is_left)
        if self._root is not None:
            self._root.red = False

    def _rotate(self, entry: _Entry[T], *, left: bool) -> None:
        """Replace entry by its child: the right one in a rotation to the left."""
        child = entry.right if left else entry.left
        if child is None:
            return
        inner = child.left if left else child.right
        if left:
            entry.right, child.left = inner, entry
        else:
            entry.left, child.right = inner, entry
        if inner is not None:
            inner.parent = entry
        parent = child.parent = entry.parent
        entry.parent = child
        if parent is None:
            self._root = child
        elif parent.left is entry:
            parent.left = child
        else:
            parent.right = child
