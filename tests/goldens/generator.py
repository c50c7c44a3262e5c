"""Random cases in the goldens' format: a seed gives a topology and its inputs (FORMAT.md sections 1 to 4).

Only valid uses of operators are generated: serdes fit, tables are tables. The recorder can record the results of real
Kafka Streams for such a case; tests/goldens/test_properties.py checks the properties that need no recording.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.goldens.generated_inputs import inputs

Op = dict[str, Any]

WINDOW_SIZES_MS = (2, 5, 10, 20)
GRACES_MS = (None, 0, 5, 20)


@dataclass(frozen=True)
class Node:
    """A stream or table under construction: its id, serde names, and whether it may be stateful downstream."""

    id: str
    key: str
    value: str
    kind: str  # "stream", "table" or "global"
    versioned: bool = False
    emits_final: bool = False  # a windowed table that suppress until close may follow

    @property
    def plain(self) -> bool:
        """True if the key is not windowed."""
        return self.key == "string"


class Generator:
    """Draws one case; each method that ``STEPS`` names adds one step, or none if no node fits it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.ops: list[Op] = []
        self.nodes: list[Node] = []
        self.topics: list[tuple[str, str]] = []
        self.stores = 0
        self.ids = 0
        self.names = 0

    def case(self) -> dict[str, Any]:
        """Return the case, without anything recorded."""
        for _ in range(self.random.randint(1, 3)):
            self.source()
        for _ in range(self.random.randint(4, 12)):  # some find no node that fits
            getattr(self, self.random.choice(self.STEPS))()
        self.sinks()
        return {
            "format": "penstock-golden/1",
            "name": f"random_{self.seed}",
            "tags": ["fuzz", *sorted({op["op"] for op in self.ops})],
            "config": self.config(),
            "topology": self.ops,
            "inputs": inputs(self.random, self.topics),
        }

    def config(self) -> dict[str, str]:
        config = {
            "application.id": "golden",
            "statestore.cache.max.bytes": self.random.choice(("0", "0", "1000000")),
        }
        if self.random.random() < 0.3:
            config["topology.optimization"] = "all"
        if self.random.random() < 0.2:
            config["emit.interval.ms"] = "1000"
        return config

    def add(self, op: str, node: Node | None = None, named: Any = 0.2, **fields: Any) -> Node | None:
        """Append an entry, sometimes with a name; the fields from_ and with_ are "from" and "with"."""
        entry: Op = {
            "op": op,
            **({"id": node.id} if node else {}),
            **{k.rstrip("_"): v for k, v in fields.items() if v is not None},
        }
        if self.random.random() < named:
            self.names += 1
            entry["name"] = f"op-{self.names}"
        self.ops.append(entry)
        if node is not None and node.kind != "grouped":
            self.nodes.append(node)
        return node

    def new(self, key: str, value: str, kind: str, **traits: bool) -> Node:
        self.ids += 1
        return Node(f"n{self.ids}", key, value, kind, **traits)

    def pick(self, *kinds: str, plain: bool = False, value: str | None = None) -> Node | None:
        """Choose an existing node of these kinds, None if there is none."""
        fitting = [
            n for n in self.nodes if n.kind in kinds and (n.plain or not plain) and (value is None or n.value == value)
        ]
        return self.random.choice(fitting) if fitting else None

    def store(self, key: str, value: str, chance: float = 0.5, versioned: bool = True, **extra: Any) -> Op:
        """Return the store fields of a Materialized, or nothing."""
        if self.random.random() >= chance:
            return {}
        self.stores += 1
        fields: Op = {"store": f"store-{self.stores}", "key": key, "value": value, **extra}
        if self.random.random() < 0.25:
            fields["store_kind"] = "in_memory"
        elif versioned and self.random.random() < 0.2:
            return fields | {"store_kind": "versioned", "history_retention_ms": self.random.choice((5, 30, 1000))}
        if self.random.random() < 0.15:
            fields["logging"] = False
        if self.random.random() < 0.3:
            fields["caching"] = self.random.random() < 0.5
        return fields

    # sources

    def source(self) -> None:
        topic, value = f"in{len(self.topics)}", self.random.choice(("string", "long"))
        self.topics.append((topic, value))
        kind = self.random.choice(("stream", "stream", "table", "table", *(["global"] if self.nodes else [])))
        if kind == "stream":
            self.add("stream", self.new("string", value, "stream"), topic=topic, key="string", value=value)
            return
        fields = self.store("string", value, 0.4, versioned=kind == "table")
        fields.pop("logging", None)
        node = self.new("string", value, kind, versioned=fields.get("store_kind") == "versioned")
        self.add(
            kind if kind == "table" else "global_table", node, topic=topic, key="string", value=value, **without(fields)
        )

    # stateless steps

    def value_function(self, value: str) -> tuple[str, str]:
        """Choose a value function for a value serde; return it and the serde of its result."""
        choices = [("identity", value), ("value_to_string", "string"), ("key_value", "string"), ("null_if:a1", value)]
        if value == "long":
            choices += [("value_plus:3", "long"), ("value_times:-2", "long"), ("null_if_even", "long")]
        else:
            choices += [("value_length", "long"), ("upper", "string"), ("constant:z", "string")]
        return self.random.choice([c for c in choices if c[0] != "null_if:a1" or value == "string"])

    def predicate(self, node: Node) -> str:
        of_value = {"long": ("value_even", "value_gt:3", "value_gt:0"), "string": ("value_contains:a",)}[node.value]
        found: str = self.random.choice((*of_value, "value_not_null", "key_not_null", "key_starts_with:a", "always"))
        return found

    def key_function(self, node: Node) -> str:
        choices = (
            ["key_first_char", "key_upper", "const_key:k", "same_key"] if node.plain else ["unwindow", "window_string"]
        )
        if node.plain:
            choices += ["value_mod:2", "value_mod:3"] if node.value == "long" else ["key_from_value_first_char"]
        return self.random.choice(choices)

    def filtering(self) -> None:
        node = self.pick("stream", "table")
        if node is None:
            return
        op = self.random.choice(("filter", "filter_not"))
        fields = self.store(node.key, node.value, 0.3) if node.kind == "table" and node.plain else {}
        versioned = fields.get("store_kind") == "versioned"
        self.add(
            op,
            self.new(node.key, node.value, node.kind, versioned=versioned),
            from_=node.id,
            predicate=self.predicate(node),
            **fields,
        )

    def mapping_values(self) -> None:
        node = self.pick("stream", "table")
        if node is None or not node.plain:
            return
        function, value = self.value_function(node.value)
        fields = self.store(node.key, value, 0.3) if node.kind == "table" else {}
        versioned = fields.get("store_kind") == "versioned"
        self.add(
            "map_values",
            self.new(node.key, value, node.kind, versioned=versioned),
            from_=node.id,
            fn=function,
            **fields,
        )

    def reshaping(self) -> None:
        node = self.pick("stream")
        if node is None:
            return
        if not node.plain or self.random.random() < 0.4:
            self.add(
                "select_key",
                self.new("string", node.value, "stream"),
                from_=node.id,
                key_fn=self.key_function(node),
            )
        elif self.random.random() < 0.5:
            function = self.random.choice(("twice", "expand:3") if node.value == "long" else ("twice", "split_words"))
            self.add("flat_map_values", self.new(node.key, node.value, "stream"), from_=node.id, fn=function)
        else:
            function, value = self.value_function(node.value)
            self.add(
                "map",
                self.new("string", value, "stream"),
                from_=node.id,
                key_fn=self.key_function(node),
                value_fn=function,
            )

    def branching(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        branches = [
            {"id": n.id, "predicate": self.predicate(node)} for n in self.branches(node, self.random.randint(1, 2))
        ]
        default = {"id": self.branches(node, 1)[0].id} if self.random.random() < 0.5 else None
        self.add("split", from_=node.id, branches=branches, default=default)

    def branches(self, node: Node, count: int) -> list[Node]:
        new = [self.new(node.key, node.value, "stream") for _ in range(count)]
        self.nodes += new
        return new

    def merging(self) -> None:
        node = self.pick("stream", plain=True)
        other = self.pick("stream", plain=True, value=node.value) if node else None
        if node is None or other is None or other == node:
            return
        self.add("merge", self.new("string", node.value, "stream"), from_=node.id, with_=other.id)

    def repartitioning(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        self.add("repartition", self.new("string", node.value, "stream"), from_=node.id, key="string", value=node.value)

    # tables and aggregates

    def tabling(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        fields = {"key": "string", "value": node.value} | self.store("string", node.value)
        versioned = fields.get("store_kind") == "versioned"
        self.add("to_table", self.new("string", node.value, "table", versioned=versioned), from_=node.id, **fields)

    def streaming(self) -> None:
        node = self.pick("table")
        if node is None:
            return
        self.add("to_stream", self.new(node.key, node.value, "stream"), from_=node.id)

    def grouping(self, node: Node) -> Node:
        grouped = self.new("string", node.value, "grouped")
        if node.kind == "table" or self.random.random() < 0.5:
            self.add("group_by", grouped, from_=node.id, key_fn=self.key_function(node), key="string", value=node.value)
        else:
            self.add("group_by_key", grouped, from_=node.id, key="string", value=node.value)
        return grouped

    def aggregating(self) -> None:
        node = self.pick("stream", "table", plain=True)
        if node is None or node.versioned:
            return
        grouped = self.grouping(node)
        table = node.kind == "table"
        self.aggregate(grouped, grouped, "string", table, windowed=False)

    def aggregate(self, grouped: Node, source: Node, key: str, table: bool, windowed: bool, **extra: Any) -> None:
        """Add count, reduce or aggregate; extra has the parameters of session windows."""
        op = self.random.choice(("count", "reduce", "aggregate"))
        value = "long" if op == "count" else source.value
        versioned = not windowed
        fields = self.store("string", value, 0.7 if op == "count" else 1.0, versioned=versioned)
        result = self.new(key, value, "table", versioned=fields.get("store_kind") == "versioned", emits_final=windowed)
        if op == "reduce":
            pairs = (
                (("sum", "subtract"), ("max", "first"))
                if value == "long"
                else (("concat", "remove"), ("last", "first"))
            )
            add, subtract = self.random.choice(pairs)
            fields |= {"fn": add, "subtractor": subtract if table else None}
        elif op == "aggregate":
            pair = ("zero", "sum", "subtract", "sum") if value == "long" else ("empty", "concat", "remove", "concat")
            fields |= {"init": pair[0], "agg": pair[1], "subtractor": pair[2] if table else None}
            fields |= {"merger": pair[3]} if key.startswith("session") else {}
        fields.setdefault("key", "string")
        fields.setdefault("value", value)
        if op == "count" and "store" not in fields:
            fields = {}
        self.add(op, result, from_=grouped.id, **fields, **extra)

    def windowing(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        grouped = self.grouping(node)
        kind = self.random.choice(("tumbling", "hopping", "sliding", "session"))
        window: Op = {"type": kind}
        if kind in ("tumbling", "hopping"):
            window["size_ms"] = self.random.choice(WINDOW_SIZES_MS)
        if kind == "hopping":
            window["advance_ms"] = self.random.randint(1, window["size_ms"])
        window |= {"diff_ms": self.random.choice((0, 3, 10))} if kind == "sliding" else {}
        window |= {"gap_ms": self.random.choice((1, 3, 10))} if kind == "session" else {}
        grace = self.random.choice(GRACES_MS)
        window |= {} if grace is None else {"grace_ms": grace}
        windowed = self.new("string", node.value, "grouped")
        emit = self.random.choice((None, None, "window_update", "window_close"))
        self.add("windowed_by", windowed, named=0, from_=grouped.id, window=window, emit=emit)
        self.aggregate(windowed, node, ("session" if kind == "session" else "time") + "_windowed:string", False, True)

    def suppressing(self) -> None:
        node = self.pick("table")
        if node is None or node.versioned:
            return
        fields: Op = {"until": "time_limit", "ms": self.random.choice((0, 5, 20))}
        if self.random.random() < 0.5:
            fields["max_records"] = self.random.choice((1, 2, 100))
        self.add("suppress", self.new(node.key, node.value, "table"), from_=node.id, **fields)

    # joins

    def joiner(self, left: Node, right: Node, keyed: bool) -> tuple[str, str]:
        if left.value == right.value == "long" and self.random.random() < 0.5:
            return "sum", "long"
        return self.random.choice(("concat", "concat_key") if keyed else ("concat",)), "string"

    def joining_streams(self) -> None:
        left, right = self.pick("stream", plain=True), self.pick("stream", plain=True)
        if left is None or right is None:
            return
        joiner, value = self.joiner(left, right, keyed=True)
        self.add(
            "stream_stream_join",
            self.new("string", value, "stream"),
            from_=left.id,
            with_=right.id,
            type=self.random.choice(("inner", "left", "outer")),
            joiner=joiner,
            before_ms=self.random.choice((0, 5, 10)),
            after_ms=self.random.choice((0, 5, 12)),
            grace_ms=self.random.choice((0, 5, 15)),
            key="string",
            value=left.value,
            other_value=right.value,
            store_kind="in_memory" if self.random.random() < 0.2 else None,
        )

    def joining_table(self) -> None:
        stream, table = self.pick("stream", plain=True), self.pick("table", "global", plain=True)
        if stream is None or table is None:
            return
        kind = self.random.choice(("inner", "left"))
        joiner, value = self.joiner(stream, table, keyed=True)
        node = self.new("string", value, "stream")
        if table.kind == "global":
            key = self.random.choice(("same_key", "key_first_char", "null_key"))
            self.add("stream_global_join", node, from_=stream.id, with_=table.id, type=kind, joiner=joiner, key_fn=key)
        else:
            self.add(
                "stream_table_join",
                node,
                from_=stream.id,
                with_=table.id,
                type=kind,
                joiner=joiner,
                key="string",
                value=stream.value,
                other_value=table.value,
            )

    def joining_tables(self) -> None:
        left, right = self.pick("table", plain=True), self.pick("table", plain=True)
        if left is None or right is None:
            return
        joiner, value = self.joiner(left, right, keyed=False)
        fields = self.store("string", value, 0.4, versioned=False)
        if self.random.random() < 0.4:
            key = self.random.choice(
                ("fk_first_char", "fk_prefix", "fk_value") if left.value == "string" else ("fk_key_first_char",)
            )
            self.add(
                "table_fk_join",
                self.new("string", value, "table"),
                from_=left.id,
                with_=right.id,
                type=self.random.choice(("inner", "left")),
                fk=key,
                joiner=joiner,
                **fields,
            )
        else:
            self.add(
                "table_table_join",
                self.new("string", value, "table"),
                from_=left.id,
                with_=right.id,
                type=self.random.choice(("inner", "left", "outer")),
                joiner=joiner,
                **fields,
            )

    def processing(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        processor = self.random.choice(
            ("dedup", "add_header:via", "shift_timestamp:4", "tally_stream_time:10", "seen_within:7")
        )
        uses = None
        if processor.split(":")[0] in ("dedup", "tally_stream_time", "seen_within"):
            self.stores += 1
            uses = f"store-{self.stores}"
            extra: Op = {"store_kind": "window", "size_ms": 10, "retention_ms": 100} if "seen" in processor else {}
            value = "long" if "tally" in processor else node.value
            self.add("add_store", named=0, store=uses, key="string", value=value, **extra)
        value = "long" if "tally" in processor else node.value
        self.add("process", self.new("string", value, "stream"), from_=node.id, processor=processor, uses=uses)

    STEPS: tuple[str, ...] = (
        "filtering",
        "mapping_values",
        "reshaping",
        "branching",
        "merging",
        "repartitioning",
        "tabling",
        "streaming",
        "aggregating",
        "aggregating",
        "windowing",
        "windowing",
        "suppressing",
        "joining_streams",
        "joining_streams",
        "joining_table",
        "joining_tables",
        "joining_tables",
        "processing",
    )

    # ends

    def sinks(self) -> None:
        """Write every stream and table to its own topic."""
        for node in [n for n in self.nodes if n.kind in ("stream", "table")]:
            source = node
            if node.kind == "table":
                source = self.new(node.key, node.value, "stream")
                self.add("to_stream", source, named=0, from_=node.id)
            self.add("to", named=0, from_=source.id, topic=f"out-{node.id}", key=node.key, value=node.value)


def without(fields: Op) -> Op:
    """Return store fields without the serdes, for entries that carry their own."""
    return {name: value for name, value in fields.items() if name not in ("key", "value")}


def generate(seed: int) -> dict[str, Any]:
    """Return the random case of a seed; equal seeds give equal cases."""
    return Generator(seed).case()
