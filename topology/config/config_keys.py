"""The table of configuration keys: Kafka Streams' (4.4) with its defaults, and Penstock's own.

Name, type, default, meaning, valid values. If a default is not Kafka's, its line says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..common.durations import ISO_8601_DURATION
from .config_def import ConfigKey, ConfigType, DerivedDefault, at_least, between, matches, one_of
from .state_dir_default import default_state_dir

AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE_V2 = "exactly_once_v2"
OPTIMIZATIONS = ("reuse.ktable.source.topics", "merge.repartition.topics", "single.store.self.join")

BOOLEAN, INT, MS = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.MILLISECONDS
STRING, PATH, LIST, CLASS = ConfigType.STRING, ConfigType.PATH, ConfigType.LIST, ConfigType.CLASS


def _by_guarantee(at_least_once: object, exactly_once: object) -> DerivedDefault:
    return DerivedDefault(
        "processing.guarantee",
        lambda config: exactly_once if config["processing.guarantee"] == EXACTLY_ONCE_V2 else at_least_once,
    )


def _words(*words: str, **named: str) -> dict[str, str]:
    """Return words that stand for themselves, and for each ``value="…"`` the further ways to write it."""
    return {w: w for w in words} | {w: value for value, texts in named.items() for w in (value, *texts.split())}


_EXTRACTORS = _words(
    "FailOnInvalidTimestamp",
    "LogAndSkipOnInvalidTimestamp",
    "UsePartitionTimeOnInvalidTimestamp",
    "WallclockTimestampExtractor",
)
_SERDES = _words(
    string="StringSerde",
    bytes="BytesSerde ByteArraySerde ByteBufferSerde",
    boolean="BooleanSerde",
    void="VoidSerde",
    list="ListSerde",
    uuid="UUIDSerde",
    int16="ShortSerde short",
    int32="IntegerSerde integer",
    int64="LongSerde long",
    float32="FloatSerde float",
    float64="DoubleSerde double",
    json="JsonSerde",
)
_STORES = _words(rocksDB="RocksDBDslStoreSuppliers", in_memory="InMemoryDslStoreSuppliers")
_DESERIALIZATION = {
    "fail": "fail",
    "log_and_fail": "fail",
    "LogAndFailExceptionHandler": "fail",
    "continue": "continue",
    "log_and_continue": "continue",
    "LogAndContinueExceptionHandler": "continue",
}
_PROCESSING = _DESERIALIZATION | {
    "LogAndFailProcessingExceptionHandler": "fail",
    "LogAndContinueProcessingExceptionHandler": "continue",
}
_PRODUCTION = _DESERIALIZATION | {"DefaultProductionExceptionHandler": "fail"}
_APPLICATION_ID = matches(
    r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}", "of letters, digits, '.', '_' and '-' only, because it names topics"
)
_SERVERS = matches(
    r"[^\s,/]+:\d+(\s*,\s*[^\s,/]+:\d+)*", "host:port without http:// or the like, with commas between several"
)
#: Kafka's Utils.HOST_PORT_PATTERN (KIP-1245).
_ENDPOINT = matches(
    r"(?:(?:[0-9a-zA-Z\-%._]*://)?\[?[0-9a-zA-Z\-%._:]+\]?:\d+)?", "host:port, protocol://host:port, or nothing"
)
_ANY_OPTIMIZATION = "|".join(OPTIMIZATIONS).replace(".", r"\.")
_OPTIMIZATION_LIST = matches(
    rf"none|all|({_ANY_OPTIMIZATION})(\s*,\s*({_ANY_OPTIMIZATION}))*", "none, all, or a list of optimizations"
)
_RESET = matches(
    rf"earliest|latest|none|by_duration:{ISO_8601_DURATION}", "earliest, latest, none, or by_duration:P1DT12H"
)
_UPGRADES = one_of(
    *(
        f"{major}.{minor}"
        for major, first, last in ((2, 4, 8), (3, 0, 9), (4, 0, 3))
        for minor in range(first, last + 1)
    )
)
_STALL_TIMEOUT = DerivedDefault("max.poll.interval.ms", lambda config: config["max.poll.interval.ms"] + 60_000)

# fmt: off
_TABLE = (
    ConfigKey("application.id", STRING, None,
              "Required. Consumer group, prefix of internal topics, folder under state.dir.", _APPLICATION_ID),
    ConfigKey("bootstrap.servers", STRING, None,
              "Required. Addresses of the Kafka cluster: host:port, several separated by commas.", _SERVERS),
    # -- processing
    ConfigKey("processing.guarantee", STRING, AT_LEAST_ONCE,
              "How a crash may affect results.", one_of(AT_LEAST_ONCE, EXACTLY_ONCE_V2)),
    ConfigKey("num.stream.threads", INT, 1, "Number of stream threads; each is its own process.", at_least(1)),
    ConfigKey("commit.interval.ms", MS, _by_guarantee(30_000, 100), "How often progress is committed.", at_least(0)),
    ConfigKey("poll.ms", MS, 100, "How long to wait for input.", at_least(0)),
    ConfigKey("buffered.records.per.partition", INT, 1000,
              "Records buffered for a partition before it is paused.", at_least(1)),
    ConfigKey("max.task.idle.ms", MS, 0,
              "How long to wait for a partition that has no data, to keep time order; -1: never wait.", at_least(-1)),
    ConfigKey("task.timeout.ms", MS, 300_000,
              "How long a task may retry internal errors before it fails.", at_least(0)),
    ConfigKey("repartition.purge.interval.ms", MS, 30_000,
              "How often consumed records of repartition topics are deleted.", at_least(0)),
    ConfigKey("topology.optimization", STRING, "none",
              "none, all, or some of " + ", ".join(OPTIMIZATIONS) + ".", _OPTIMIZATION_LIST),
    ConfigKey("ensure.explicit.internal.resource.naming", BOOLEAN, False,
              "Refuse generated names of stores and internal topics (KIP-1111)."),
    ConfigKey("processor.wrapper.class", CLASS, None,
              "Code around every processor (KIP-1112)."),
    # -- records: serdes, time, errors
    ConfigKey("default.key.serde", CLASS, "string", "Serde of keys for operators that name none.", words=_SERDES),
    ConfigKey("default.value.serde", CLASS, "json", "Serde of values for operators that name none.", words=_SERDES),
    ConfigKey("default.list.key.serde.type", CLASS, None,
              "Java's list class; Serdes.list() reads Python lists.", no_effect=True),
    ConfigKey("default.list.value.serde.type", CLASS, None,
              "Java's list class; Serdes.list() reads Python lists.", no_effect=True),
    ConfigKey("default.list.key.serde.inner", CLASS, None,
              "Serde of the elements of lists, for keys whose serde is Serdes.list() without one.", words=_SERDES),
    ConfigKey("default.list.value.serde.inner", CLASS, None,
              "Serde of the elements of lists, for values whose serde is Serdes.list() without one.", words=_SERDES),
    ConfigKey("windowed.inner.class.serde", CLASS, None,
              "Inner serde of windowed keys for plain consumers, not for Penstock's.", no_effect=True),
    ConfigKey("window.size.ms", MS, None,
              "Window size for plain consumers, not for Penstock's.", at_least(1), no_effect=True),
    ConfigKey("default.timestamp.extractor", CLASS, "FailOnInvalidTimestamp",
              "Where a record's timestamp comes from.", words=_EXTRACTORS),
    ConfigKey("deserialization.exception.handler", CLASS, "fail",
              "What happens to a record that cannot be read.",
              words=_DESERIALIZATION),
    ConfigKey("default.deserialization.exception.handler", CLASS, "fail",
              "Deprecated: deserialization.exception.handler.",
              words=_DESERIALIZATION, deprecated_for="deserialization.exception.handler"),
    ConfigKey("processing.exception.handler", CLASS, "fail",
              "What happens after an exception in an operator (KIP-1033).",
              words=_PROCESSING),
    ConfigKey("processing.exception.handler.global.enabled", BOOLEAN, False,
              "Let that handler decide about failures of the processors of global stores and tables, too (KIP-1270)."),
    ConfigKey("production.exception.handler", CLASS, "fail",
              "What happens to a record that cannot be produced.",
              words=_PRODUCTION),
    ConfigKey("default.production.exception.handler", CLASS, "fail",
              "Deprecated: production.exception.handler.",
              words=_PRODUCTION, deprecated_for="production.exception.handler"),
    ConfigKey("errors.dead.letter.queue.topic.name", STRING, None,
              "Topic for failed records (KIP-1034)."),
    # -- state
    ConfigKey("state.dir", PATH, DerivedDefault("user", lambda _: default_state_dir()),
              "Directory of the state, ~ is the home directory; not Java's, the files differ."),
    ConfigKey("state.cleanup.delay.ms", MS, 600_000,
              "How long the state of a task that has moved away is kept.", at_least(1)),
    ConfigKey("state.cleanup.dir.max.age.ms", MS, -1,
              "Delete state older than this at start; -1: never (KIP-1259).", at_least(-1)),
    ConfigKey("allow.os.group.write.access", BOOLEAN, False,
              "Let the operating-system group write to the state directory."),
    ConfigKey("statestore.cache.max.bytes", INT, 10_485_760,
              "Record cache of all stream threads together; 0: each update is forwarded.", at_least(0)),
    ConfigKey("cache.max.bytes.buffering", INT, 10_485_760,
              "Deprecated: statestore.cache.max.bytes.", at_least(0), deprecated_for="statestore.cache.max.bytes"),
    ConfigKey("dsl.store.suppliers.class", CLASS, "rocksDB", "Store of operators that name none.", words=_STORES),
    ConfigKey("default.dsl.store", CLASS, "rocksDB",
              "Deprecated: dsl.store.suppliers.class.", words=_STORES, deprecated_for="dsl.store.suppliers.class"),
    ConfigKey("dsl.store.format", STRING, "DEFAULT",
              "HEADERS: deletions in changelogs of operators' stores have headers (KIP-1285).",
              words=_words("DEFAULT", "HEADERS")),
    ConfigKey("rocksdb.config.setter", CLASS, None,
              "Function (store name, rocksdict.Options, config) that changes RocksDB's options."),
    ConfigKey("windowstore.changelog.additional.retention.ms", MS, 86_400_000,
              "Added to a window's retention in its changelog.", at_least(0)),
    ConfigKey("enable.transactional.statestores", BOOLEAN, False,
              "Kafka Streams 4.4's KIP-892; Penstock's stores always commit atomically.", no_effect=True),
    ConfigKey("statestore.uncommitted.max.bytes", INT, 67_108_864,
              "Kafka Streams 4.4's KIP-892; here penstock.memory.bytes decides how much may be uncommitted.",
              at_least(-1), no_effect=True),
    ConfigKey("topology.description.push.enabled", BOOLEAN, True,
              "Push the topology's description to the broker of a streams group if it asks for it (KIP-1331)."),
    ConfigKey("default.interactive.query.isolation.level", STRING, "read_uncommitted",
              "What queries see: all processed records, or the rows of the last commit (KIP-892).",
              words=_words("read_uncommitted", "read_committed")),
    # -- group and assignment
    ConfigKey("group.protocol", STRING, "classic",
              "Who assigns tasks: the group's leader, or the broker (KIP-1071).", words=_words("classic", "streams")),
    ConfigKey("num.standby.replicas", INT, 0, "Standby copies of each task's state.", at_least(0)),
    ConfigKey("max.warmup.replicas", INT, 2, "Warm-up copies at a time while tasks move.", at_least(1)),
    ConfigKey("acceptable.recovery.lag", INT, 10_000,
              "Offsets a client may lag and still get an active task.", at_least(0)),
    ConfigKey("probing.rebalance.interval.ms", MS, 600_000,
              "How often to check whether warm-up copies have caught up.", at_least(60_000)),
    ConfigKey("task.assignor.class", CLASS, None,
              "Task assignor; none: HighAvailabilityTaskAssignor.",
              words=_words("HighAvailabilityTaskAssignor", "StickyTaskAssignor")),
    ConfigKey("rack.aware.assignment.strategy", STRING, "none",
              "How tasks are placed to read from brokers in their own client.rack (KIP-925).",
              one_of("none", "min_traffic", "balance_subtopology")),
    ConfigKey("rack.aware.assignment.tags", LIST, [],
              "Client tags (client.tag.*) over which standby copies are spread."),
    ConfigKey("rack.aware.assignment.traffic_cost", INT, None,
              "Cost of a partition that is read from another rack; none: the assignor's own.", at_least(0)),
    ConfigKey("rack.aware.assignment.non_overlap_cost", INT, None,
              "Cost of a task that changes its client; none: the assignor's own.", at_least(0)),
    ConfigKey("upgrade.from", STRING, None, "Java version in a rolling upgrade.", _UPGRADES),
    ConfigKey("application.server", STRING, "", "host:port at which others find this application's state.",
              _ENDPOINT),
    ConfigKey("replication.factor", INT, -1, "Of internal topics; -1: the broker's default.", at_least(-1)),
    # -- observation
    ConfigKey("client.id", STRING, "", "Prefix of the clients' ids; empty: <application.id>-<process id>."),
    ConfigKey("log.summary.interval.ms", MS, 120_000, "How often a stream thread logs a summary; negative: never."),
    ConfigKey("built.in.metrics.version", STRING, "latest", "Names of metrics.", one_of("latest")),
    ConfigKey("metrics.recording.level", STRING, "INFO",
              "How much is measured; DEBUG and TRACE: calls of stores, too, which takes time at each call.",
              words=_words("INFO", "DEBUG", "TRACE")),
    ConfigKey("metrics.num.samples", INT, 2, "Samples kept for a metric.", at_least(1)),
    ConfigKey("metrics.sample.window.ms", MS, 30_000, "Time span of a sample.", at_least(0)),
    ConfigKey("metric.reporters", LIST, [], "Java's reporters; KafkaStreams.metrics() has them here.", no_effect=True),
    ConfigKey("enable.metrics.push", BOOLEAN, True, "Push client metrics to the broker (KIP-714)."),
    # -- all clients
    ConfigKey("security.protocol", STRING, "PLAINTEXT",
              "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
              words=_words("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    ConfigKey("request.timeout.ms", MS, 40_000, "How long a request may take.", at_least(0)),
    ConfigKey("retry.backoff.ms", MS, 100, "Wait before a request is tried again.", at_least(0)),
    ConfigKey("reconnect.backoff.ms", MS, 50, "Wait before the first new connection.", at_least(0)),
    ConfigKey("reconnect.backoff.max.ms", MS, 1_000, "Longest wait before a new connection.", at_least(0)),
    ConfigKey("connections.max.idle.ms", MS, 540_000, "Close connections idle for this long."),
    ConfigKey("metadata.max.age.ms", MS, 300_000,
              "How old metadata may get; new topics of patterns are read then.", at_least(0)),
    ConfigKey("metadata.recovery.strategy", STRING, "rebootstrap",
              "What to do when no known broker answers.", words=_words("none", "rebootstrap")),
    ConfigKey("metadata.recovery.rebootstrap.trigger.ms", MS, 300_000,
              "When to start again from bootstrap.servers.", at_least(0)),
    ConfigKey("metadata.cluster.check.enable", BOOLEAN, True,
              "Brokers of Kafka 4.4 check that a connection is meant for them, and their cluster (KIP-1242)."),
    ConfigKey("receive.buffer.bytes", INT, 32_768, "Socket receive buffer; -1: the system's.", at_least(-1)),
    ConfigKey("send.buffer.bytes", INT, 131_072, "Socket send buffer; -1: the system's.", at_least(-1)),
    ConfigKey("config.providers", LIST, [],
              "Java's configuration providers; use environment variables.", no_effect=True),
    ConfigKey("default.client.supplier", CLASS, None, "Creates the clients (KafkaClientSupplier)."),
    # -- the main consumer; found behind main.consumer. and consumer. too
    ConfigKey("client.rack", STRING, "",
              "Rack of this host: fetch from replicas there; for rack.aware.assignment.strategy.", client="consumer"),
    # Kafka Streams' 1000 spends a twentieth of the time on the loop around the batches; more than this gains nothing
    # and delays commits and commands.
    ConfigKey("max.poll.records", INT, 5000,
              "Records taken from the consumer at once (Kafka Streams: 1000).", at_least(1), client="consumer"),
    ConfigKey("auto.offset.reset", STRING, "earliest",
              "Where to start without a committed offset; by_duration:P1DT12H: behind records older than that.",
              _RESET, client="consumer"),
    ConfigKey("max.poll.interval.ms", MS, 300_000,
              "Longest time between two polls before the thread loses its tasks.", at_least(1), client="consumer"),
    ConfigKey("session.timeout.ms", MS, 45_000,
              "Silence after which the broker considers a member dead.", at_least(1), client="consumer"),
    ConfigKey("heartbeat.interval.ms", MS, 3_000,
              "How often a member sends a heartbeat to the broker.", at_least(1), client="consumer"),
    ConfigKey("group.instance.id", STRING, None,
              "Prefix of static members' ids, -<slot> is added; empty: see penstock.static.membership.",
              client="consumer"),
    ConfigKey("isolation.level", STRING, _by_guarantee("read_uncommitted", "read_committed"),
              "Which records are read.", one_of("read_uncommitted", "read_committed"), client="consumer"),
    # -- the producer; found behind producer. too
    ConfigKey("linger.ms", MS, 100,
              "How long records wait for a fuller batch; librdkafka uses 0.25 instead of 0.",
              at_least(0), client="producer"),
    ConfigKey("acks", STRING, "all",
              "Which replicas must have a record before it counts as written.",
              one_of("all", "-1", "0", "1"), client="producer"),
    ConfigKey("enable.idempotence", BOOLEAN, True,
              "Keep order and write once when requests are repeated.", client="producer"),
    ConfigKey("delivery.timeout.ms", MS, _by_guarantee(120_000, 2_147_483_647),
              "How long a record may take to be written.", at_least(1), client="producer"),
    ConfigKey("transaction.timeout.ms", MS, _by_guarantee(60_000, 10_000),
              "How long the broker lets a transaction stay open.", at_least(1), client="producer"),
    # -- internal keys of Kafka Streams that its tests, and ours, set
    ConfigKey("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", MS, 1_000,
              "Internal: pause between results of outer joins.", at_least(0)),
    ConfigKey("__emit.interval.ms.kstreams.windowed.aggregation__", MS, 1_000,
              "Internal: pause between results on window close.", at_least(0)),
    # -- Penstock's own
    ConfigKey("penstock.static.membership", BOOLEAN, True,
              "Each slot is a static member, so a replaced process resumes its tasks."),
    ConfigKey("penstock.fetcher", STRING, "auto",
              "Client that reads records: librdkafka, or auto: Penstock's own if it supports all consumer settings.",
              one_of("auto", "librdkafka")),
    # As the longest response: a record that is not compressed cannot be larger (receive.message.max.bytes). At least a
    # piece, which is decompressed at once anyway.
    ConfigKey("penstock.record.max.bytes", INT, 100_000_000,
              "Largest record that is decompressed; a few KB can expand to gigabytes.", at_least(1 << 20)),
    ConfigKey("penstock.sender", STRING, "auto",
              "Client that writes records: librdkafka, or auto: Penstock's own if it supports all producer settings.",
              one_of("auto", "librdkafka")),
    ConfigKey("penstock.worker.beat.interval.ms", MS, 1_000,
              "How often a stream thread reports its status to the supervisor.", at_least(10)),
    ConfigKey("penstock.worker.stall.timeout.ms", MS, _STALL_TIMEOUT,
              "Silence after which a process is aborted and replaced; above max.poll.interval.ms.", at_least(1)),
    # A minute: elections of leaders and moves of partitions are over by then, and a request has timed out (40 s).
    ConfigKey("penstock.partition.stall.timeout.ms", MS, 60_000,
              "How long a partition with records may stall before its task is reopened; 0: forever.",
              at_least(0)),
    # Once: if a new fetch session in the same process does not help, another one will not either.
    ConfigKey("penstock.partition.stall.reopen.max", INT, 1,
              "How often the task of a stalled partition is reopened before the process is replaced.", at_least(0)),
    ConfigKey("penstock.worker.abort.grace.ms", MS, 5_000,
              "Between SIGABRT, which leaves a stack in the log, and SIGKILL.", at_least(0)),
    ConfigKey("penstock.worker.restart.max", INT, 10,
              "Replacements within the window; one more and the application goes to ERROR.", at_least(0)),
    ConfigKey("penstock.worker.restart.window.ms", MS, 300_000,
              "The window of penstock.worker.restart.max.", at_least(1)),
    ConfigKey("penstock.worker.restart.backoff.ms", MS, 500,
              "Wait before the second replacement in a row; doubles. The first one is immediate.", at_least(0)),
    ConfigKey("penstock.worker.restart.backoff.max.ms", MS, 30_000, "Longest wait before a replacement.", at_least(0)),
    ConfigKey("penstock.worker.spare", BOOLEAN, True,
              "Keep a spare process, with everything imported, to replace a crashed one at once."),
    ConfigKey("penstock.shutdown.timeout.ms", MS, 60_000,
              "How long stream threads may take to commit and close before they are killed.", at_least(0)),
    ConfigKey("penstock.dead.letter.stacktrace.max.bytes", INT, 16_384,
              "Maximum size of a dead letter's stack trace, whose middle is left out; 0: none.", at_least(0)),
    ConfigKey("penstock.topology.changes", STRING, "refuse",
              "What to do if the topology does not fit the existing state; accept: run it anyway.",
              words=_words("refuse", "accept")),
    ConfigKey("penstock.lost.offsets", STRING, "refuse",
              "What to do if a task has state, but the group has no offsets of its input; accept: read it again.",
              words=_words("refuse", "accept")),
    ConfigKey("penstock.sink.prefix", STRING, "",
              "Put before the name of every topic that the application writes, internal ones aside; see branches.",
              matches(r"[A-Za-z0-9._-]{0,200}", "of letters, digits, '.', '_' and '-' only, because it names topics")),
    ConfigKey("penstock.checkpoint.uri", STRING, "",
              "Where checkpoints of stores are: s3://bucket/prefix, gs:, az: or file:///directory; empty: none.",
              matches(r"((s3|gs|az)://[^/?#@]+(/[^?#]*)?|file:///[^?#]*)?",
                      "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory")),
    ConfigKey("penstock.checkpoint.interval.ms", MS, 600_000,
              "How often a checkpoint of each task is uploaded.", at_least(1)),
    ConfigKey("penstock.checkpoint.keep", INT, 2,
              "Newest checkpoints of a task that are kept.", at_least(1)),
    ConfigKey("penstock.http.port", INT, None,
              "Serve health, metrics, stores and the dashboard over HTTP; none: disabled, 0: any free port.",
              between(0, 65_535)),
    ConfigKey("penstock.http.host", STRING, "127.0.0.1",
              "Address to listen on; any but the loopback address needs penstock.http.token."),
    ConfigKey("penstock.http.token", STRING, None,
              "Bearer token that HTTP requests must carry; without one nothing can be changed over HTTP."),
    ConfigKey("penstock.http.subscriptions.max", INT, 32,
              "Maximum number of subscriptions to stores' changes over HTTP at a time; 0: none.",
              between(0, 64)),
    ConfigKey("penstock.http.subscriptions.buffer.bytes", INT, 16 << 20,
              "Newest changes of a store that are kept for its subscribers, in bytes; a slower subscriber is dropped.",
              at_least(1)),
    ConfigKey("penstock.sql.memory.bytes", INT, 256 << 20,
              "Memory of a query in SQL, and maximum size of its result; a query that needs more fails.",
              at_least(1 << 20)),
    ConfigKey("penstock.sql.rows.max", INT, 1_000_000,
              "Maximum rows of the result of a query in SQL.", at_least(1)),
    ConfigKey("penstock.sql.timeout.ms", MS, 30_000,
              "Maximum duration of a query in SQL; a slower one is stopped.", at_least(1)),
    ConfigKey("penstock.host.watch", BOOLEAN, False,
              "Watch other hosts over HTTP, so that the tasks of one that dies move at once."),
    ConfigKey("penstock.memory.bytes", INT, None,
              "Memory for all stream threads together, divided among their stores; none: at most half of the host's.",
              at_least(1)),
    ConfigKey("penstock.memory.replace.percent", INT, 150,
              "Percentage of its share of penstock.memory.bytes above which a stream thread is restarted; 0: never.",
              at_least(0)),
    ConfigKey("penstock.memory.replace.after.ms", MS, 60_000,
              "How long a stream thread may exceed that.", at_least(0)),
    ConfigKey("penstock.metrics.sampling.percent", INT, 1,
              "Percentage of a stream thread's time for tracing records through the operators; 0: disabled.",
              between(0, 10)),
    ConfigKey("penstock.metrics.otlp.interval.ms", MS, 0,
              "How often metrics are sent by OTLP, to OTEL_EXPORTER_OTLP_ENDPOINT; 0: never.", at_least(0)),
    ConfigKey("penstock.tracing", BOOLEAN, False,
              "Make OpenTelemetry spans of batches with sampled records, commits, restores and rebalances."),
    ConfigKey("penstock.spark.max.records.per.batch", INT, 1_000_000,
              "With --engine spark: maximum records of a sub-topology in a micro-batch. Tasks hold them in memory.",
              at_least(1)),
    ConfigKey("penstock.spark.buckets", INT, 1,
              "With --engine spark: how many tasks share the keys of a partition, if its operators allow it.",
              at_least(1)),
    ConfigKey("penstock.log.level", STRING, "INFO",
              "What is logged.", words=_words("DEBUG", "INFO", "WARNING", "ERROR")),
    ConfigKey("penstock.log.format", STRING, "auto",
              "Log format; auto: for the journal under systemd, otherwise plain.",
              words=_words("auto", "plain", "json", "journal")),
)
# fmt: on

#: Every known key by name, in the order in which it is shown.
KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _TABLE}
