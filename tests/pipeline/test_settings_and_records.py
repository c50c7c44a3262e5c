"""Settings of Spark's source and of the sink, the owner of a checkpoint, and the encoding of records. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, Serdes, StreamsBuilder, StreamsConfig
from penstock.pipeline.checkpoint.checkpoint import CheckpointError, Topics, check, identity, with_known_ids
from penstock.pipeline.session.kafka_settings import EARLIEST, LATEST, java_settings, source_options
from penstock.pipeline.session.spark_session import SparkUnavailableError, require_jdk
from penstock.pipeline.tasks.record_batches import messages, pack, pack_by_task, sent_batch, unpack
from penstock.topology.config.streams_config import StreamsConfig as Config
from penstock.topology.records import SentRecord

BASE = {"application.id": "app", "bootstrap.servers": "broker:9092"}


def config(**given: Any) -> Config:
    return StreamsConfig({**BASE, **given})


# -- settings


def test_scram_becomes_a_jaas_line_with_an_escaped_password() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'a"b\\c',
    }
    settings = java_settings(config(**given))
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\"b\\\\c";'
    )


def test_pem_files_are_read_by_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("CERTIFICATE")
    settings = java_settings(config(**{"security.protocol": "SSL", "ssl.ca.location": str(file)}))
    assert settings["ssl.truststore.certificates"] == "CERTIFICATE"
    assert settings["ssl.truststore.type"] == "PEM"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI"),
        ({"security.protocol": "SSL", "ssl.crl.location": "/x"}, "ssl.crl.location cannot be translated"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"}, "ssl.ca.location=/no/such/file cannot"),
    ],
)
def test_a_setting_without_a_translation_is_refused_and_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        java_settings(config(**given))


def test_each_topic_starts_where_its_source_says_and_internal_ones_at_their_first_record() -> None:
    builder = StreamsBuilder()
    strings: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    late = builder.stream("late", offset_reset="latest", **strings)
    late.merge(builder.stream("early", **strings)).repartition(**strings).to("out")
    given = config()
    first, second = builder.build().internal_builder.build_subtopologies(given, frozenset())
    counts = {"late": 1, "early": 2, "app-x-repartition": 1}
    options = source_options(first, given, counts, ["late", "early"])
    assert options["startingOffsets"] == f'{{"early":{{"0":{EARLIEST},"1":{EARLIEST}}},"late":{{"0":{LATEST}}}}}'
    internal = source_options(second, config(**{"auto.offset.reset": "latest"}), counts, ["app-x-repartition"])
    assert internal["startingOffsets"] == f'{{"app-x-repartition":{{"0":{EARLIEST}}}}}'


# -- checkpoints


class UpperCase:
    """A user's serde."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        return None if value is None else value.upper().encode()

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode()


def counting(value_serde: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.table("in", store="rows", key_serde=Serdes.string(), value_serde=value_serde)
    return builder


def identity_of(builder: StreamsBuilder, partitions: int = 1, topic_id: str = "", **settings: Any) -> dict[str, Any]:
    topology, given = builder.build(), config(**{name.replace("_", "."): value for name, value in settings.items()})
    built = topology.internal_builder.build_subtopologies(given, frozenset())
    return identity(topology, built, given, Topics({"in": partitions}, {"in": topic_id} if topic_id else {}))


def written(found: dict[str, Any]) -> bytes:
    import orjson

    return orjson.dumps(found)


def test_a_checkpoint_of_the_same_topology_is_accepted() -> None:
    check(written(identity_of(counting(Serdes.string()))), identity_of(counting(Serdes.string())), "/ck")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (identity_of(counting(Serdes.int64())), "stores of rows: there .* value int64, here .* value string"),
        (
            identity_of(counting(None), default_value_serde="bytes"),
            "stores of rows: there .* value bytes, here .* value string",
        ),
        (identity_of(counting(UpperCase()), 1), "stores of rows: there .* value UpperCase, here .* value string"),
        (
            identity_of(counting(Serdes.session_windowed(Serdes.int64()))),
            r"stores of rows: there .* value SessionWindowedSerde\(int64\), here .* value string",
        ),
        (identity_of(counting(Serdes.string()), 3), "partitions of in: there 3, here 1"),
        (identity_of(counting(Serdes.string()), 0), "Partitions were added: in had 0, and has 1.*--accept-changes"),
    ],
)
def test_the_refusal_of_another_topologys_checkpoint_says_what_differs(other: dict[str, Any], difference: str) -> None:
    with pytest.raises(CheckpointError, match=difference):
        check(written(other), identity_of(counting(Serdes.string())), "/ck")


def test_only_added_partitions_are_accepted_as_changes() -> None:
    wanted = identity_of(counting(Serdes.string()), 2)
    check(written(identity_of(counting(Serdes.string()))), wanted, "/ck", accept=True)
    with pytest.raises(CheckpointError, match="stores of rows"):
        check(written(identity_of(counting(Serdes.int64()))), wanted, "/ck", accept=True)


def test_a_recreated_topic_is_refused_and_checkpoints_without_ids_are_accepted() -> None:
    wanted, earlier = identity_of(counting(Serdes.string()), 1, "new"), identity_of(counting(Serdes.string()))
    del earlier["topic ids"]
    check(written(earlier), wanted, "/ck")
    with pytest.raises(CheckpointError, match="the topic in was deleted and created again"):
        check(written(identity_of(counting(Serdes.string()), 1, "old")), wanted, "/ck")


def test_the_id_of_a_topic_is_kept_while_the_brokers_do_not_describe_it() -> None:
    earlier, silent = identity_of(counting(Serdes.string()), 1, "old"), identity_of(counting(Serdes.string()))
    kept = with_known_ids(silent, earlier)
    assert kept == earlier
    with pytest.raises(CheckpointError, match="the topic in was deleted and created again"):
        check(written(kept), identity_of(counting(Serdes.string()), 1, "new"), "/ck")


def test_a_checkpoint_of_another_format_is_refused_with_the_way_to_move_it() -> None:
    wanted = identity_of(counting(Serdes.string()))
    with pytest.raises(CheckpointError, match=r"stores in format 1, and this Penstock reads format 2.*--to local"):
        check(written(wanted | {"format": 1}), wanted, "/ck")


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"/ck/penstock-topology\.json cannot be read"):
        check(b"{", identity_of(counting(Serdes.string())), "/ck")


# -- records

SENT = [
    SentRecord("out", b"k", None, 5, [("h", b"1"), ("h", None)]),
    SentRecord("out", None, b"v", None, None, 3),
]


def test_records_survive_packing_with_nulls_and_headers() -> None:
    (batch,) = unpack(pack(sent_batch(SENT)))
    first, second = messages(batch)
    assert (first.key(), first.value(), first.timestamp()[1], first.partition()) == (b"k", None, 5, -1)
    assert first.headers() == [("h", b"1"), ("h", None)]
    expected: tuple[Any, ...] = (None, b"v", None, 3)
    assert (second.key(), second.value(), second.timestamp()[1], second.partition()) == expected
    assert second.headers() is None


def test_records_are_packed_by_topic_and_partition() -> None:
    mixed = [SentRecord("a", b"1", b"", 1, None, 0), SentRecord("a", b"2", b"", 1, None, 1)]
    (rows,) = pack_by_task([sent_batch([*mixed, SentRecord("b", b"3", b"", 1, None, 0)])])
    assert rows.column("task").to_pylist() == [0, 1, 0]
    assert rows.column("topic").to_pylist() == ["a", "a", "b"]
    keys = [messages(batch)[0].key() for data in rows.column("records").to_pylist() for batch in unpack(data)]
    assert keys == [b"1", b"2", b"3"]


def test_in_buckets_a_key_has_one_task_and_its_records_keep_their_order() -> None:
    keys = [b"a", b"b", None, b"a", b"c", b"b", b"d"]
    sent = sent_batch([SentRecord("in", key, b"%d" % place, 1, None, 2) for place, key in enumerate(keys)])
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    (rows,) = pack_by_task([sent], buckets=3)
    for task, data in zip(rows.column("task").to_pylist(), rows.column("records").to_pylist(), strict=True):
        for batch in unpack(data):
            found.setdefault(task, []).extend((record.key(), record.value()) for record in messages(batch))
    assert len(found) > 1
    assert {task // 3 for task in found} == {2}
    assert (None, b"2") in found[6]  # the first bucket
    for key in set(keys):
        (values,) = [[value for k, value in records if k == key] for records in found.values() if key in dict(records)]
        assert values == [b"%d" % place for place, other in enumerate(keys) if other == key]


# -- Java


def test_a_stripped_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21.0.1"\' >&2 || echo java.base@21\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match=r"has no module jdk.incubator.vector"):
        require_jdk()


@pytest.mark.parametrize(("version", "found"), [("11.0.2", "is Java 11"), (None, "does not run")])
def test_no_java_or_one_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, found: str
) -> None:
    if version is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin-without-java")
    monkeypatch.setattr("penstock.pipeline.java.java_runtime.importlib.util.find_spec", lambda name: None)
    with pytest.raises(SparkUnavailableError, match=rf"Spark needs a full JDK 17 or newer \(.*{found}\)\. Install"):
        require_jdk()
