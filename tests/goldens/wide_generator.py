"""Random cases with a wider range than generator.py's: every op, store kind and window of FORMAT.md, and bad input.

Many end in an error, of the build or of a record: errors are recorded and compared too.
"""

from __future__ import annotations

import json
from typing import Any

from tests.goldens.generated_inputs import encoded
from tests.goldens.generator import Generator, Node, Op

NUMBERS = ("long", "integer")
OPTIMIZATIONS = ("reuse.ktable.source.topics", "merge.repartition.topics", "single.store.self.join")


class WideGenerator(Generator):
    """Draws one case, with parameters that Generator does not draw."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: Tables whose rows the processor lookup may read: store and table.
        self.readable: list[tuple[str, Node]] = []

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def case(self) -> dict[str, Any]:
        """Return the case, without anything recorded."""
        case = super().case()
        case["name"] = f"wide_{self.seed}"
        if any(op.get("processor") == "lookup" or '"session"' in json.dumps(op) for op in self.ops):
            case["config"].pop("dsl.store.format", None)  # the recorder cannot read its rows
        self.shake(case)
        return case

    def config(self) -> dict[str, str]:
        config = super().config()
        config.pop("topology.optimization", None)
        if self.chance(0.4):
            some = self.random.sample(OPTIMIZATIONS, self.random.randint(1, 3))
            config["topology.optimization"] = self.random.choice(("all", ",".join(some)))
        for key, value, probability in (
            ("processing.exception.handler", "log_and_continue", 0.25),
            ("deserialization.exception.handler", "log_and_continue", 0.2),
            ("dsl.store.format", "HEADERS", 0.06),
            ("default.dsl.store", "in_memory", 0.08),
        ):
            if self.chance(probability):
                config[key] = value
        return config

    def shake(self, case: dict[str, Any]) -> None:
        """Let time jump in the inputs; give some records more headers, or bytes that are no valid value."""
        jump = 0
        timed = {topic for op in self.ops if "timestamp_extractor" in op for topic in as_list(op["topic"])}
        for step in case["inputs"]:
            if "topic" not in step:
                continue
            if step["topic"] in timed and (step["value"] is None or step["value"]["json"] < 0) and self.chance(0.95):
                step["value"] = encoded(7, "long")
            jump += self.random.choice((30, 200, 100_000)) if self.chance(0.04) else 0
            step["timestamp"] += jump
            if self.chance(0.08):
                step["headers"] = [["h", None], ["h", "YQ=="], ["", ""]]
            readable = "deserialization.exception.handler" in case["config"]
            if step["value"] is not None and self.chance(0.05 if readable else 0.002):
                step["value"] = {"json": None, "b64": "/w=="}

    # stores

    def store(self, key: str, value: str, chance: float = 0.5, versioned: bool = True, **extra: Any) -> Op:
        if not self.chance(chance):
            return {"materialized": True, "key": key, "value": value, **extra} if self.chance(0.3) else {}
        fields = super().store(key, value, 1.0, versioned, **extra)
        if key != "string":  # the recorder does not show rows with windowed keys
            return {"materialized": True, "key": key, "value": value}
        if "store_kind" not in fields and self.chance(0.15):
            fields |= {"store_kind": "lru", "max_entries": 2} if self.chance(0.4) else {"store_kind": "plain"}
        return fields

    def window_store(self, value: str) -> Op:
        """Return the store fields of a windowed aggregation."""
        fields: Op = {"key": "string", "value": value}
        if self.chance(0.8):
            self.stores += 1
            fields["store"] = f"store-{self.stores}"
        for field, choices, probability in (
            ("store_kind", ("in_memory",), 0.3),
            ("logging", (False,), 0.1),
            ("caching", (True, False), 0.4),
            ("retention_ms", (120, 1000, 100_000), 0.25),
        ):
            if self.chance(probability):
                fields[field] = self.random.choice(choices)
        return fields

    def remember(self, fields: Op, node: Node) -> None:
        """Keep a table whose store a processor can read."""
        if "store" in fields and node.plain and fields.get("store_kind", "in_memory") == "in_memory":
            self.readable.append((fields["store"], node))

    # sources and simple steps

    def source(self) -> None:
        topic = f"in{len(self.topics)}"
        if not self.chance(0.25):
            super().source()
            if self.ops[-1]["op"] == "global_table" and "store" not in self.ops[-1] and self.chance(0.9):
                self.ops[-1].pop("materialized", None)  # needs a name there
            return
        topics = [topic] if self.chance(0.5) else [topic, f"{topic}b"]
        self.topics += [(name, "long") for name in topics]
        extractor = "value" if self.chance(0.2) else None
        node = self.new("string", "long", "stream")
        fields = {"key": "string", "value": "long", "timestamp_extractor": extractor}
        self.add("stream", node, topic=topics if len(topics) > 1 else topic, **fields)

    def predicate(self, node: Node) -> str:
        if node.value in NUMBERS:
            return self.random.choice(("value_even", "value_gt:2", "value_not_null", "never", "key_not_null"))
        return super().predicate(node)

    def value_function(self, value: str) -> tuple[str, str]:
        if value in NUMBERS and self.chance(0.6):
            kept = self.random.choice(("null_if_even", "value_times:1000000007", "fail_if:3"))
            return self.random.choice(
                (
                    (kept, value),
                    ("value_to_integer", "integer"),
                    ("value_to_long", "long"),
                    ("value_to_string", "string"),
                )
            )
        if value == "string" and self.chance(0.4):
            return self.random.choice([("value_from_key", "string"), ("fail_if:xyz", value), ("key_value", value)])
        return ("identity", value) if value == "integer" else super().value_function(value)

    def key_function(self, node: Node) -> str:
        if node.plain and self.chance(0.1):
            return "null_key"
        number = Node(node.id, node.key, "long", node.kind) if node.value == "integer" else node
        return super().key_function(number)

    def mapping_values(self) -> None:
        node = self.pick("stream", "table")
        if node is None or (node.value == "string" and not node.plain):
            return
        function, value = self.value_function(node.value)
        if not node.plain and function in ("value_from_key", "key_value"):
            return
        fields = self.store(node.key, value, 0.5) if node.kind == "table" else {}
        if node.kind == "table" and self.chance(0.9):  # otherwise it has no serdes, which suppress and others then lack
            fields = fields or {"materialized": True, "key": node.key, "value": value}
        result = self.new(node.key, value, node.kind, versioned=fields.get("store_kind") == "versioned")
        self.add("map_values", result, from_=node.id, fn=function, **fields)
        self.remember(fields, result) if node.kind == "table" else None

    def words(self) -> None:
        node = self.pick("stream", plain=True, value="string")
        if node is not None:
            self.add("flat_map", self.new("string", "string", "stream"), from_=node.id, fn="words_as_keys")

    def looking(self) -> None:
        node = self.pick("stream")
        if node is not None and self.chance(0.5):
            self.add("peek", self.new(node.key, node.value, "stream"), from_=node.id)
        elif node is not None:
            self.add("foreach", from_=node.id)

    def branching(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        new = self.branches(node, self.random.randint(2, 4))
        branches: list[Op] = [{"id": n.id, "predicate": self.predicate(node)} for n in new[1:]]
        default: Op = {"id": new[0].id}
        for branch in (*branches, default):
            if self.chance(0.4):
                self.names += 1
                branch["name"] = f"-branch{self.names}"
        self.add("split", from_=node.id, branches=branches, default=default)

    def streaming(self) -> None:
        node = self.pick("table")
        if node is None:
            return
        key_fn = self.key_function(node) if self.chance(0.4) else None
        result = self.new("string" if key_fn else node.key, node.value, "stream")
        self.add("to_stream", result, from_=node.id, key_fn=key_fn)

    def tabling(self) -> None:
        node = self.pick("stream")
        if node is None:
            return
        fields = {"key": node.key, "value": node.value} | self.store(node.key, node.value)
        result = self.new(node.key, node.value, "table", versioned=fields.get("store_kind") == "versioned")
        self.add("to_table", result, from_=node.id, **fields)
        self.remember(fields, result)

    # aggregations

    def aggregating(self) -> None:
        node = self.pick("stream", "table")
        if node is None or (node.kind == "stream" and not node.plain):
            return
        if node.kind == "table" and self.chance(0.5):
            grouped = self.new("string", node.value, "grouped")
            fn = self.value_function(node.value) if node.plain else ("identity", node.value)
            if fn[1] == node.value:
                key = {"key_fn": self.key_function(node), "value_fn": fn[0], "key": "string", "value": node.value}
                self.add("group_by", grouped, from_=node.id, **key)
                self.aggregate(grouped, grouped, "string", True, windowed=False)
                return
        grouped = self.grouping(node)
        self.aggregate(grouped, grouped, "string", node.kind == "table", windowed=False)

    def aggregate(self, grouped: Node, source: Node, key: str, table: bool, windowed: bool, **extra: Any) -> None:
        op = self.random.choice(("count", "reduce", "aggregate"))
        value = "long" if op == "count" else source.value
        if op == "reduce" and value in NUMBERS:
            functions = self.random.choice((("sum", "subtract"), ("min", "first"), ("sum_or_null:5", "subtract")))
            call: Op = {"fn": functions[0], "subtractor": functions[1] if table else None}
        elif op == "reduce":
            functions = self.random.choice((("concat", "remove"), ("last", "first")))
            call = {"fn": functions[0], "subtractor": functions[1] if table else None}
        elif op == "aggregate":
            value, call = self.aggregator(source, key, table)
        else:
            call = {}
        fields = self.window_store(value) if windowed else self.store("string", value, 0.8, versioned=not table)
        fields = {"key": "string", "value": value} | fields
        if op == "count" and self.chance(0.15):
            fields = {}
        result = self.new(key, value, "table", versioned=fields.get("store_kind") == "versioned", emits_final=windowed)
        self.add(op, result, from_=grouped.id, **fields, **call, **extra)
        self.remember(fields, result)

    def aggregator(self, source: Node, key: str, table: bool) -> tuple[str, Op]:
        """Return the value serde and the functions of an aggregation."""
        if source.value == "string" and self.chance(0.6):
            init, functions, value = "empty", ("concat", "remove", "concat"), "string"
        elif source.value == "string":
            init, functions, value = "zero", ("sum_length", "subtract_length", "sum"), "long"
        else:
            more = (("sum", "subtract", "sum"), ("max", "keep", "max"), ("sum_or_null:4", "subtract", "sum"))
            init, functions, value = "zero", self.random.choice(more), "long"
        call: Op = {"init": "null" if self.chance(0.2) else init, "agg": functions[0]}
        call |= {"subtractor": functions[1]} if table else {}
        return value, call | ({"merger": functions[2]} if key.startswith("session") else {})

    def window(self, *kinds: str) -> Op:
        """Choose windows."""
        kind = self.random.choice(kinds)
        window: Op = {"type": kind}
        if kind in ("tumbling", "hopping"):
            window["size_ms"] = self.random.choice((1, 3, 7, 10, 50))
        if kind == "hopping":
            window["advance_ms"] = self.random.randint(1 if window["size_ms"] < 20 else 11, window["size_ms"])
        window |= {"diff_ms": self.random.choice((1, 2, 6, 15))} if kind == "sliding" else {}
        window |= {"gap_ms": self.random.choice((1, 2, 5, 12))} if kind == "session" else {}
        if kind != "unlimited" and self.chance(0.7):
            window["grace_ms"] = self.random.choice((0, 1, 6, 25, 300))
        return window

    def windowing(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        window = self.window("tumbling", "hopping", "sliding", "sliding", "session", "session", "unlimited")
        windowed, emit = self.new("string", node.value, "grouped"), None
        if window["type"] != "unlimited":
            emit = self.random.choice((None, "window_update", "window_close"))
        self.add("windowed_by", windowed, named=0, from_=self.grouping(node).id, window=window, emit=emit)
        kind = "session" if window["type"] == "session" else "time"
        self.aggregate(windowed, node, f"{kind}_windowed:string", False, True)

    def cogrouping(self) -> None:
        nodes = [n for n in (self.pick("stream", plain=True) for _ in range(self.random.randint(1, 3))) if n]
        if not nodes:
            return
        text = self.chance(0.5)
        inputs = []
        for node in nodes:
            of_number = "count" if node.value == "string" else "sum"
            grouped = self.grouping(node)
            if self.chance(0.9):  # several repartition topics need their own names
                self.names += 1
                self.ops[-1]["name"] = f"op-{self.names}"
            inputs.append({"from": grouped.id, "agg": "concat" if text else of_number})
        cogrouped = self.new("string", "string" if text else "long", "grouped")
        self.add("cogroup", cogrouped, named=0, inputs=inputs)
        key, fields, merger = "string", self.store("string", cogrouped.value, 0.8), None
        if self.chance(0.6):
            window = self.window("tumbling", "hopping", "sliding", "session")
            session = window["type"] == "session"
            windowed = self.new("string", cogrouped.value, "grouped")
            self.add("windowed_by", windowed, named=0, from_=cogrouped.id, window=window)
            key = ("session" if session else "time") + "_windowed:string"
            fields, merger = self.window_store(cogrouped.value), ("concat" if text else "sum") if session else None
            cogrouped = windowed
        fields = {"key": "string", "value": cogrouped.value} | fields
        result = self.new(key, cogrouped.value, "table", versioned=fields.get("store_kind") == "versioned")
        call = {"init": "empty" if text else "zero", "merger": merger}
        self.add("aggregate", result, from_=cogrouped.id, **call, **fields)
        self.remember(fields, result)

    def suppressing(self) -> None:
        tables = [n for n in self.nodes if n.kind == "table" and not n.versioned]
        final = [n for n in tables if n.emits_final]
        if final and self.chance(0.7):
            node = self.random.choice(final)
            fields: Op = {"until": "window_closes"}
            fields |= {"max_records": self.random.choice((2, 5, 50))} if self.chance(0.3) else {}
        elif tables:
            node = self.random.choice(tables)
            fields = {"until": "time_limit", "ms": self.random.choice((0, 3, 15, 100))}
            fields |= {"max_records": self.random.choice((1, 3))} if self.chance(0.5) else {}
            if "max_records" in fields and self.chance(0.25):
                fields |= {"full": "shut_down"}
        else:
            return
        fields |= {"logging": False} if self.chance(0.2) else {}
        self.add("suppress", self.new(node.key, node.value, "table"), from_=node.id, **fields)

    # joins and processors

    def joiner(self, left: Node, right: Node, keyed: bool) -> tuple[str, str]:
        if self.chance(0.2) and left.value == right.value:  # a Java Integer equals no Long
            return "null_if_equal", "string"
        if self.chance(0.2):
            return ("left", left.value) if self.chance(0.5) else ("right", right.value)
        return super().joiner(left, right, keyed)

    def joining_streams(self) -> None:
        left = self.pick("stream", plain=True)
        right = left if self.chance(0.25) else self.pick("stream", plain=True)
        if left is None or right is None:
            return
        joiner, value = self.joiner(left, right, keyed=True)
        before = self.random.choice((0, 1, 5, 20, -2))
        fields: Op = {"before_ms": before, "after_ms": self.random.choice((2, 7, 30) if before < 0 else (0, 2, 7))}
        if self.chance(0.3):
            self.stores += 1
            fields["join_store"] = f"join-{self.stores}"
        fields |= {"store_kind": "in_memory"} if self.chance(0.25) else {}
        fields |= {"logging": False} if self.chance(0.15) else {}
        fields |= {"key": "string", "value": left.value, "other_value": right.value, "joiner": joiner}
        fields |= {
            "grace_ms": self.random.choice((0, 1, 6, 25)),
            "type": self.random.choice(("inner", "left", "outer")),
        }
        self.add("stream_stream_join", self.new("string", value, "stream"), from_=left.id, with_=right.id, **fields)

    def versioned_table(self) -> None:
        """Join a stream with a versioned table, with grace."""
        stream = self.pick("stream", plain=True)
        if stream is None:
            return
        topic = f"in{len(self.topics)}"
        self.topics.append((topic, "string"))
        self.stores += 1
        history = self.random.choice((20, 100, 1000))
        kept = {"store": f"store-{self.stores}", "store_kind": "versioned", "history_retention_ms": history}
        table = self.new("string", "string", "table", versioned=True)
        self.add("table", table, topic=topic, key="string", value="string", **kept)
        joiner, value = self.joiner(stream, table, keyed=True)
        self.add(
            "stream_table_join",
            self.new("string", value, "stream"),
            from_=stream.id,
            with_=table.id,
            type=self.random.choice(("inner", "left")),
            joiner=joiner,
            key="string",
            value=stream.value,
            other_value="string",
            grace_ms=self.random.choice((None, 0, 3, 15)),
        )

    def joining_windowed_tables(self) -> None:
        left = self.pick("table")
        rights = [n for n in self.nodes if left and n.kind == "table" and n.key == left.key]
        if left is None or left.plain or not rights:
            return
        right = self.random.choice(rights)
        joiner, value = self.joiner(left, right, keyed=False)
        fields = self.store(left.key, value, 0.4, versioned=False)
        kind = self.random.choice(("inner", "left", "outer"))
        new = self.new(left.key, value, "table")
        self.add("table_table_join", new, from_=left.id, with_=right.id, type=kind, joiner=joiner, **fields)

    def own_store(self, value: str, **extra: Any) -> str:
        """Add a store for a processor and return its name."""
        self.stores += 1
        name = f"store-{self.stores}"
        if self.chance(0.3):
            extra.setdefault("store_kind", "in_memory")
        extra |= {"caching": True} if self.chance(0.4) else {}
        extra |= {"logging": False} if self.chance(0.15) else {}
        self.add("add_store", named=0, store=name, key="string", value=value, **extra)
        return name

    def processing(self) -> None:
        node = self.pick("stream", plain=True)
        if node is None:
            return
        kind = self.random.choice(
            ("tally_wall_clock:1000", "tally_stream_time:7", "numbering", "lookup", "other", "seen")
        )
        if kind == "numbering":
            uses, result = self.own_store("long"), self.new("string", "string", "stream")
            self.add("process_values", result, from_=node.id, processor=kind, uses=uses)
        elif kind == "lookup" and self.readable:
            result = self.new("string", "string", "stream")
            self.add("process", result, from_=node.id, processor=kind, uses=self.random.choice(self.readable)[0])
        elif kind == "other":
            kind = self.random.choice(("time_as_value", "metadata_as_value", "add_header:h", "shift_timestamp:-3"))
            result = self.new("string", "string" if "as_value" in kind else node.value, "stream")
            self.add("process", result, from_=node.id, processor=kind)
        elif kind == "seen":
            uses = self.own_store(node.value, store_kind="window", size_ms=10, retention_ms=100)
            self.add(
                "process", self.new("string", node.value, "stream"), from_=node.id, processor="seen_within:5", uses=uses
            )
        elif kind.startswith("tally"):
            result = self.new("string", "long", "stream")
            self.add("process", result, from_=node.id, processor=kind, uses=self.own_store("long"))

    def writing_by_key(self) -> None:
        node = self.pick("stream", plain=True)
        if node is not None:
            self.add("to", named=0.3, from_=node.id, topic_fn="out_by_key", key="string", value=node.value)

    STEPS = (
        *Generator.STEPS,
        *("words", "looking", "cogrouping", "cogrouping", "suppressing", "suppressing", "versioned_table"),
        *("joining_windowed_tables", "processing", "writing_by_key"),
    )


def as_list(topics: str | list[str]) -> list[str]:
    """Return the topics of a stream as a list; there may be only one."""
    return [topics] if isinstance(topics, str) else topics


def generate_wide(seed: int) -> dict[str, Any]:
    """Return the wide random case of a seed; equal seeds give equal cases."""
    return WideGenerator(seed).case()
