"""An application, and what changes its operators: mutants that must be found, refactorings that make no difference."""

from __future__ import annotations

#: The application; ``@name@`` is what a mutant or a refactoring replaces.
SOURCE = """\
from penstock import JoinWindows, Processor, Serdes, SessionWindows, StreamsBuilder, Stores, TimeWindows

TEXT, NUMBER = Serdes.string(), Serdes.int64()
NUMBERS = {"key_serde": TEXT, "value_serde": NUMBER}


class Changes(Processor):
    def init(self, context):
        self.context = context
        self.store = context.get_state_store("last")

    def process(self, record):
        last = self.store.get(record.key) or 0
        self.store.put(record.key, @remembered@)
        self.context.forward(record.with_value(@change@))


def topology():
    builder = StreamsBuilder()
    numbers = builder.stream("in", **NUMBERS)
    names = builder.table("names", store="names", **NUMBERS)
    numbers.filter(lambda key, value: @kept@, name="kept").to("kept", **NUMBERS)
    numbers.filter_not(lambda key, value: @dropped@, name="dropped").to("dropped", **NUMBERS)
    numbers.map_values(lambda value: @doubled@, name="doubled").to("doubled", **NUMBERS)
    numbers.flat_map_values(lambda value: @parts@, name="parts").to("parts", **NUMBERS)
    numbers.select_key(lambda key, value: @rekeyed@, name="rekeyed").to("rekeyed", **NUMBERS)
    numbers.map(lambda key, value: @mapped@, name="mapped").to("mapped", **NUMBERS)
    grouped = numbers.group_by_key()
    total = grouped.aggregate(
        lambda: @zero@, lambda key, value, total: @total@, name="total", store="totals", value_serde=NUMBER
    )
    total.filter(lambda key, value: @big@, name="big").to_stream(name="big-stream").to("big", **NUMBERS)
    total.map_values(lambda value: @half@, name="half").to_stream(name="half-stream").to("half", **NUMBERS)
    grouped.reduce(lambda one, two: @highest@, name="highest", store="highest-store")
    windows = TimeWindows.of_size_with_no_grace(10_000)
    grouped.windowed_by(windows).reduce(lambda one, two: @window@, name="window", store="window-store")
    numbers.join(names, lambda value, name: @joined@, name="joined").to("joined", **NUMBERS)
    numbers.left_join(names, lambda value, name: @left@, name="left").to("left", **NUMBERS)
    others = builder.stream("other", **NUMBERS)
    near = JoinWindows.of_time_difference_with_no_grace(2_000)
    numbers.join(others, lambda one, two: @near@, near, name="near", **NUMBERS, other_value_serde=NUMBER).to(
        "near", **NUMBERS
    )
    builder.add_state_store(
        Stores.key_value_store_builder(Stores.persistent_key_value_store("last"), TEXT, NUMBER)
    )
    numbers.process(Changes, "last", name="changes").to("changes", **NUMBERS)
    return builder.build()
"""
TOPICS = ("in", "names", "other")
#: By placeholder: the node that has it, the right code, and mutants.
TABLE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "kept": (
        "kept",
        "value > 3",
        ("value >= 3", "value > 4", "value < 3", "value != 4", "True", "value > 3 and key > 'b'"),
    ),
    "dropped": (
        "dropped",
        "value % 7 == 0",
        ("value % 7 == 1", "value % 14 == 0", "value % 7 != 0", "False", "value % 7 == 0 and key > 'a'", "value == 7"),
    ),
    "doubled": (
        "doubled",
        "value * 2",
        (
            "value * 3",
            "value + 2",
            "value * 2 + (value == 11)",
            "-value * 2",
            "value * 2 if value < 25 else 50",
            "value",
        ),
    ),
    "parts": (
        "parts",
        "[value, value + 1]",
        ("[value]", "[value + 1, value]", "[value, value + 2]", "[]", "[value, value, value + 1]", "[value + 1]"),
    ),
    "rekeyed": (
        "rekeyed",
        'f"{key}-{value % 3}"',
        ('f"{key}-{value % 4}"', 'f"{key}{value % 3}"', "key", 'f"{value % 3}-{key}"', 'f"{key}-{value % 3}".upper()'),
    ),
    "mapped": (
        "mapped",
        "(key.upper(), value + 1)",
        (
            "(key, value + 1)",
            "(key.upper(), value)",
            "(key.upper(), value - 1)",
            "(key * 2, value + 1)",
            "(key.upper(), 1)",
        ),
    ),
    "zero": ("total", "0", ("1", "-1", "10", "100")),
    "total": (
        "total",
        "total + value",
        (
            "total - value",
            "total + value + 1",
            "max(total, value)",
            "value",
            "total",
            "total + value % 30",
            "total + value // 2 * 2",
        ),
    ),
    "big": (
        "big",
        "value > 100",
        ("value > 130", "value >= 90", "value < 100", "True", "value > 100 and key != 'c'", "value > 1000"),
    ),
    "half": (
        "half",
        "value // 2",
        (
            "-(-value // 2)",
            "value // 3",
            "abs(value // 2 - 1)",
            "value",
            "value // 2 + 1",
            "value % 2",
        ),
    ),
    "highest": (
        "highest",
        "max(one, two)",
        ("min(one, two)", "two", "one", "max(one, two - 1)", "one + two", "max(one, two, 40)"),
    ),
    "window": (
        "window",
        "one + two",
        ("one - two", "max(one, two)", "two", "one", "one + two + 1", "one + 2 * two", "min(one, two)"),
    ),
    "joined": (
        "joined",
        "value * 100 + name",
        (
            "value * 100",
            "value * 100 - name",
            "value + name",
            "name * 100 + value",
            "value * 101 + name",
            "value * 100 + name % 39",
            "name",
        ),
    ),
    "left": (
        "left",
        "value if name is None else name",
        (
            "name or 0",
            "value",
            "0 if name is None else name",
            "value if name is None else -name",
            "value + (name or 0)",
        ),
    ),
    "near": (
        "near",
        "one - two",
        (
            "two - one",
            "one + two",
            "one",
            "two",
            "one - two - 1",
            "abs(one - two)",
            "one * two",
            "one - two + (one == two)",
        ),
    ),
    "remembered": (
        "changes",
        "record.value",
        ("record.value + 1", "last", "max(last, record.value)", "0", "record.value // 2"),
    ),
    "change": (
        "changes",
        "record.value - last",
        (
            "last - record.value",
            "record.value",
            "record.value + last",
            "abs(record.value - last)",
            "record.value - last + 1",
        ),
    ),
}
#: By placeholder, in which the same is written differently.
REFACTORINGS: tuple[dict[str, str], ...] = (
    {"kept": "not value <= 3"},
    {"dropped": "not value % 7"},
    {"doubled": "value + value"},
    {"parts": "(value + number for number in range(2))"},
    {"rekeyed": '"-".join([key, str(value % 3)])'},
    {"total": "sum([value, total])", "zero": "int()"},
    {"highest": "one if one > two else two"},
    {"joined": "name + 100 * value", "left": "next(each for each in (name, value) if each is not None)"},
    {"change": "-(last - record.value)", "remembered": "int(record.value)"},
    {"big": "100 < value", "half": "divmod(value, 2)[0]", "window": "sum((one, two))", "near": "-two + one"},
)


def source(changes: dict[str, str]) -> str:
    """Return the application with some placeholders replaced differently."""
    text = SOURCE
    for name, (_, right, _) in TABLE.items():
        text = text.replace(f"@{name}@", changes.get(name, right))
    return text


MUTANTS = [(name, mutant) for name, (_, _, mutants) in TABLE.items() for mutant in mutants]
