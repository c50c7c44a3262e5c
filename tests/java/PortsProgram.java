import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.StateRestoreCallback;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.StateStoreContext;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.internals.DefaultKafkaClientSupplier;
import org.apache.kafka.streams.processor.internals.InternalProcessorContext;
import org.apache.kafka.streams.query.Position;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Seven programs in the manner of well-known examples, whose ports are in ports.py.
 *
 * <p>Arguments: the program, and a file. With lines of input in it, they are given to a TopologyTestDriver, and all that
 * it writes is printed, then what is read from its stores. For "broadcast" it holds the properties of an application,
 * which runs until SIGTERM.
 */
public final class PortsProgram {
    private static final Serde<String> TEXT = Serdes.String();

    // 1. Counts in a sketch: kafka-streams-examples' ProbabilisticCountingLambdaExample with its CMSStore.

    /** A count-min sketch; its changelog has one record, with all of it. */
    private static final class Sketch implements StateStore {
        private final String name;
        private final long[] cells = new long[3 * 16];
        private InternalProcessorContext<?, ?> context;
        private boolean isOpen;
        private boolean isChanged;

        private Sketch(String name) {
            this.name = name;
        }

        private long count(String word) {
            long least = Long.MAX_VALUE;
            for (int row = 0; row < 3; row++) {
                CRC32 sum = new CRC32();
                sum.update((row + word).getBytes(StandardCharsets.UTF_8));
                least = Math.min(least, ++cells[(int) (row * 16 + sum.getValue() % 16)]);
            }
            isChanged = true;
            return least;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public void init(StateStoreContext context, StateStore root) {
            this.context = (InternalProcessorContext<?, ?>) context;
            context.register(root, (StateRestoreCallback) (key, value) -> { });
            isOpen = true;
        }

        @Override
        public void commit(Map<TopicPartition, Long> offsets) {
            if (!isChanged) {
                return;
            }
            isChanged = false;
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (DataOutputStream data = new DataOutputStream(bytes)) {
                for (long cell : cells) {
                    data.writeLong(cell);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            context.logChange(name, Bytes.wrap(name.getBytes(StandardCharsets.UTF_8)), bytes.toByteArray(),
                context.recordContext().timestamp(), new RecordHeaders(), Position.emptyPosition());
        }

        @Override
        public void close() {
            isOpen = false;
        }

        @Override
        public boolean persistent() {
            return false;
        }

        @Override
        public boolean isOpen() {
            return isOpen;
        }
    }

    private static final class SketchBuilder implements StoreBuilder<Sketch> {
        @Override
        public StoreBuilder<Sketch> withCachingEnabled() {
            return this;
        }

        @Override
        public StoreBuilder<Sketch> withCachingDisabled() {
            return this;
        }

        @Override
        public StoreBuilder<Sketch> withLoggingEnabled(Map<String, String> config) {
            return this;
        }

        @Override
        public StoreBuilder<Sketch> withLoggingDisabled() {
            return this;
        }

        @Override
        public Sketch build() {
            return new Sketch(name());
        }

        @Override
        public Map<String, String> logConfig() {
            return Map.of();
        }

        @Override
        public boolean loggingEnabled() {
            return true;
        }

        @Override
        public String name() {
            return "sketch";
        }
    }

    private static final class Estimate extends ContextualProcessor<String, String, String, Long> {
        @Override
        public void process(Record<String, String> record) {
            Sketch sketch = context().getStateStore("sketch");
            context().forward(record.withKey(record.value()).withValue(sketch.count(record.value())));
        }
    }

    private static Topology probabilisticCounting() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(new SketchBuilder());
        builder.stream("in", Consumed.with(TEXT, TEXT))
            .flatMapValues(text -> java.util.List.of(text.toLowerCase().split(" ")))
            .process(Estimate::new, "sketch")
            .to("out", Produced.with(TEXT, Serdes.Long()));
        return builder.build();
    }

    // 2. Charts: kafka-streams-examples' KafkaMusicExample, with songs and plays as text.

    private static final class TopFive {
        private final Map<String, Long> plays = new TreeMap<>();

        private TopFive add(String song, long count) {
            plays.put(song, count);
            if (plays.size() > 5) {
                plays.remove(ordered().last());
            }
            return this;
        }

        private TopFive remove(String song) {
            plays.remove(song);
            return this;
        }

        private TreeSet<String> ordered() {
            TreeSet<String> songs = new TreeSet<>(
                Comparator.comparing((String song) -> -plays.get(song)).thenComparing(Comparator.naturalOrder()));
            songs.addAll(plays.keySet());
            return songs;
        }

        private static byte[] write(TopFive top) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (DataOutputStream data = new DataOutputStream(bytes)) {
                for (String song : top.ordered()) {
                    data.writeUTF(song);
                    data.writeLong(top.plays.get(song));
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return bytes.toByteArray();
        }

        private static TopFive read(byte[] bytes) {
            TopFive top = new TopFive();
            try (DataInputStream data = new DataInputStream(new ByteArrayInputStream(bytes))) {
                while (data.available() > 0) {
                    top.plays.put(data.readUTF(), data.readLong());
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return top;
        }
    }

    private static Topology kafkaMusic() {
        Serde<TopFive> topFive = Serdes.serdeFrom(
            (topic, top) -> top == null ? null : TopFive.write(top),
            (topic, bytes) -> bytes == null ? null : TopFive.read(bytes));
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> songs = builder.table("songs", Consumed.with(TEXT, TEXT), Materialized.as("all-songs"));
        KTable<String, Long> counts = builder.stream("plays", Consumed.with(TEXT, TEXT))
            .filter((region, play) -> Long.parseLong(play.split("/")[1]) >= 30_000)
            .map((region, play) -> KeyValue.pair(play.split("/")[0], play))
            .leftJoin(songs, (play, song) -> song, Joined.with(TEXT, TEXT, TEXT))
            .groupBy((id, song) -> song, Grouped.with(TEXT, TEXT))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("song-play-count")
                .withKeySerde(TEXT).withValueSerde(Serdes.Long()));
        for (boolean byGenre : new boolean[] {true, false}) {
            counts.groupBy(
                    (song, plays) -> KeyValue.pair(byGenre ? song.split("/")[1] : "all", song + "=" + plays),
                    Grouped.with(TEXT, TEXT))
                .aggregate(
                    TopFive::new,
                    (key, play, top) -> top.add(play.split("=")[0], Long.parseLong(play.split("=")[1])),
                    (key, play, top) -> top.remove(play.split("=")[0]),
                    Materialized.<String, TopFive, KeyValueStore<Bytes, byte[]>>as(
                        byGenre ? "top-five-songs-by-genre" : "top-five-songs").withKeySerde(TEXT).withValueSerde(topFive));
        }
        return builder.build();
    }

    // 3. A join of one's own: kafka-streams-examples' CustomStreamTableJoinIntegrationTest.

    private static final class JoinWithin extends ContextualProcessor<String, Double, String, String> {
        @Override
        public void process(Record<String, Double> record) {
            KeyValueStore<String, ValueAndTimestamp<Long>> table = context().getStateStore("table-store");
            ValueAndTimestamp<Long> row = table.get(record.key());
            boolean isClose = row != null
                && Duration.between(Instant.ofEpochMilli(record.timestamp()), Instant.ofEpochMilli(row.timestamp()))
                    .compareTo(Duration.ofSeconds(1)) <= 0;
            context().forward(record.withValue(record.value() + "/" + (isClose ? row.value() : null)));
        }
    }

    private static Topology customJoin() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.table("table", Consumed.with(TEXT, Serdes.Long()), Materialized.as("table-store"));
        builder.stream("stream", Consumed.with(TEXT, Serdes.Double()))
            .process(JoinWithin::new, "table-store")
            .to("out", Produced.with(TEXT, TEXT));
        return builder.build();
    }

    // 4. A report each hour, at the hour: WordCountProcessorDemo of Kafka with anchored punctuation (KIP-1146).

    private static final class Hourly extends ContextualProcessor<String, String, String, String> {
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            counts = context.getStateStore("counts");
            Duration hour = Duration.ofHours(1);
            context.schedule(Instant.EPOCH, hour, PunctuationType.WALL_CLOCK_TIME, now -> report("wall", now));
            context.schedule(
                Instant.ofEpochMilli(1_800_000), hour, PunctuationType.STREAM_TIME, now -> report("stream", now));
        }

        private void report(String clock, long now) {
            try (var rows = counts.all()) {
                rows.forEachRemaining(row ->
                    context().forward(new Record<>(row.key, clock + "@" + now + "=" + row.value, now)));
            }
        }

        @Override
        public void process(Record<String, String> record) {
            for (String word : record.value().split(" ")) {
                Long before = counts.get(word);
                counts.put(word, before == null ? 1L : before + 1);
            }
        }
    }

    private static Topology hourlyReports() {
        Topology topology = new Topology();
        topology.addSource("source", TEXT.deserializer(), TEXT.deserializer(), "in");
        topology.addProcessor("hourly", Hourly::new, "source");
        topology.addStateStore(
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("counts"), TEXT, Serdes.Long()), "hourly");
        topology.addSink("sink", "out", TEXT.serializer(), TEXT.serializer(), "hourly");
        return topology;
    }

    // 5. Results once, with headers: Kafka's SuppressScenarioTest with dsl.store.format=HEADERS (KIP-1285).

    private static Topology finalResults() {
        StreamsBuilder builder = new StreamsBuilder();
        var grouped = builder.stream("in", Consumed.with(TEXT, TEXT)).groupByKey(Grouped.with(TEXT, TEXT));
        grouped.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(10), Duration.ofMillis(5)))
            .count(Materialized.as("windows"))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()).withName("closed"))
            .toStream((window, count) -> window.key() + "@" + window.window().start())
            .to("final", Produced.with(TEXT, Serdes.Long()));
        grouped.reduce((one, other) -> one + other, Materialized.as("rows"))
            .suppress(Suppressed.untilTimeLimit(
                Duration.ofMillis(8), Suppressed.BufferConfig.maxRecords(3).emitEarlyWhenFull()).withName("limited"))
            .toStream()
            .to("limited", Produced.with(TEXT, TEXT));
        return builder.build();
    }

    // 6. An audit: kafka-streams-examples' EventDeduplicationLambdaIntegrationTest with stores that keep headers.

    private static final class Audit extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            WindowStore<String, Long> seen = context().getStateStore("event-ids");
            long now = record.timestamp();
            String id = record.key() + "/" + record.value();
            boolean isNew;
            try (WindowStoreIterator<Long> times = seen.fetch(id, now - 50, now + 50)) {
                isNew = !times.hasNext();
            }
            seen.put(id, now, now);
            if (!isNew) {
                return;
            }
            KeyValueStore<String, ValueTimestampHeaders<String>> last = context().getStateStore("last");
            ValueTimestampHeaders<String> before = last.get(record.key());
            last.put(record.key(), ValueTimestampHeaders.make(record.value(), now, record.headers()));
            if (before != null) {
                var headers = new RecordHeaders(record.headers());
                before.headers().forEach(header -> headers.add("was-" + header.key(), header.value()));
                context().forward(record.withValue(before.value() + ">" + record.value()).withHeaders(headers));
            } else {
                context().forward(record);
            }
        }
    }

    private static Topology audit() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.windowStoreBuilder(
            Stores.persistentWindowStore("event-ids", Duration.ofMinutes(5), Duration.ofMillis(100), false),
            TEXT, Serdes.Long()));
        builder.addStateStore(Stores.timestampedKeyValueStoreWithHeadersBuilder(
            Stores.persistentTimestampedKeyValueStoreWithHeaders("last"), TEXT, TEXT));
        builder.stream("in", Consumed.with(TEXT, TEXT))
            .process(Audit::new, "event-ids", "last")
            .to("out", Produced.with(TEXT, TEXT));
        return builder.build();
    }

    // 7. Alerts to all partitions (KIP-837), by a producer that marks records: the client supplier of tracing libraries.

    private static final class ToAll implements StreamPartitioner<String, String> {
        @Override
        public Optional<Set<Integer>> partitions(String topic, String key, String value, int count) {
            if (value.startsWith("alert")) {
                return Optional.of(new TreeSet<>(java.util.stream.IntStream.range(0, count).boxed().toList()));
            }
            return value.startsWith("drop") ? Optional.of(Set.of()) : Optional.empty();
        }
    }

    private static Topology broadcast(Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(properties.getProperty("ports.input"), Consumed.with(TEXT, TEXT))
            .mapValues(value -> value.trim())
            .to(properties.getProperty("ports.output"), Produced.with(TEXT, TEXT).withStreamPartitioner(new ToAll()));
        return builder.build();
    }

    /** Adds a header to each record. */
    public static final class Mark implements ProducerInterceptor<byte[], byte[]> {
        @Override
        public ProducerRecord<byte[], byte[]> onSend(ProducerRecord<byte[], byte[]> record) {
            record.headers().add("traced", "yes".getBytes(StandardCharsets.UTF_8));
            return record;
        }

        @Override
        public void onAcknowledgement(RecordMetadata metadata, Exception exception) {
        }

        @Override
        public void close() {
        }

        @Override
        public void configure(Map<String, ?> configs) {
        }
    }

    private static final class MarkingClients extends DefaultKafkaClientSupplier {
        @Override
        public Producer<byte[], byte[]> getProducer(Map<String, Object> config) {
            config.put("interceptor.classes", Mark.class.getName());
            return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override
        public Consumer<byte[], byte[]> getConsumer(Map<String, Object> config) {
            return super.getConsumer(config);
        }
    }

    private static void run(Path file) throws IOException, InterruptedException {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(file)) {
            properties.load(reader);
        }
        KafkaStreams streams = new KafkaStreams(broadcast(properties), properties, new MarkingClients());
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    // The driver

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : HexFormat.of().formatHex(bytes);
    }

    private static byte[] bytes(String hex) {
        return hex.equals("null") ? null : HexFormat.of().parseHex(hex);
    }

    private static void print(TopologyTestDriver driver) {
        for (String topic : new TreeSet<>(driver.producedTopicNames())) {
            var output = driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            for (TestRecord<byte[], byte[]> record : output.readRecordsToList()) {
                StringBuilder line = new StringBuilder(topic + " " + hex(record.key()) + " " + hex(record.value()));
                line.append(" ").append(record.timestamp() == null ? -1 : record.timestamp());
                record.headers().forEach(header ->
                    line.append(" ").append(header.key()).append("=").append(hex(header.value())));
                System.out.println(line);
            }
        }
    }

    private static void printStores(TopologyTestDriver driver) {
        for (String name : new TreeSet<>(driver.getAllStateStores().keySet())) {
            KeyValueStore<Object, Object> store = driver.getKeyValueStore(name);
            if (store == null) {
                continue;
            }
            TreeSet<String> rows = new TreeSet<>();
            try (var all = store.all()) {
                all.forEachRemaining(row -> rows.add(row.key + "=" + (row.value instanceof TopFive top
                    ? hex(TopFive.write(top)) : row.value)));
            }
            System.out.println(name + " " + rows);
        }
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Topology topology = switch (arguments[0]) {
            case "probabilistic_counting" -> probabilisticCounting();
            case "kafka_music" -> kafkaMusic();
            case "custom_join" -> customJoin();
            case "hourly_reports" -> hourlyReports();
            case "final_results" -> finalResults();
            case "audit" -> audit();
            default -> null;
        };
        if (topology == null) {
            run(Path.of(arguments[1]));
            return;
        }
        Properties properties = new Properties();
        properties.put("application.id", "port");
        properties.put("bootstrap.servers", "none:0");
        properties.put("state.dir", arguments[2]);
        properties.put("default.key.serde", Serdes.StringSerde.class);
        properties.put("default.value.serde", Serdes.StringSerde.class);
        properties.put("dsl.store.format", Set.of("final_results", "audit").contains(arguments[0]) ? "HEADERS" : "DEFAULT");
        properties.put("statestore.cache.max.bytes", "0");
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, properties, Instant.ofEpochMilli(1_000))) {
            for (String line : Files.readAllLines(Path.of(arguments[1]))) {
                String[] parts = line.split(" ");
                if (parts[0].equals("advance")) {
                    driver.advanceWallClockTime(Duration.ofMillis(Long.parseLong(parts[1])));
                } else {
                    RecordHeaders headers = new RecordHeaders();
                    for (int i = 4; i < parts.length; i++) {
                        headers.add(parts[i].split("=")[0], bytes(parts[i].split("=")[1]));
                    }
                    driver.createInputTopic(parts[0], new ByteArraySerializer(), new ByteArraySerializer()).pipeInput(
                        new TestRecord<>(bytes(parts[1]), bytes(parts[2]), headers, Long.parseLong(parts[3])));
                }
                print(driver);
                System.out.println("--");
            }
            printStores(driver);
        }
    }
}
