import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * The application of headers_program.py in Java: a processor with stores that keep headers, on disk and in memory.
 *
 * <p>Arguments: a file with the properties, of which headers.input and headers.output name the topics and headers.caching
 * says whether the stores have a cache. Runs until SIGTERM. With a file of commands as second argument it runs them in a
 * TopologyTestDriver, and writes what each record has produced.
 */
public class HeadersProgram {

    private static final Duration RETENTION = Duration.ofHours(24);

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        Topology topology = topology(properties);
        if (arguments.length > 1) {
            record(topology, properties, Path.of(arguments[1]));
            return;
        }
        KafkaStreams streams = new KafkaStreams(topology, properties);
        streams.setStateListener((now, before) -> System.out.println(now));
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    private static Topology topology(Properties properties) {
        boolean caching = Boolean.parseBoolean(properties.getProperty("headers.caching"));
        Topology topology = new Topology();
        topology.addSource("source", Serdes.String().deserializer(), Serdes.String().deserializer(),
            properties.getProperty("headers.input"));
        topology.addProcessor("processor", Commands::new, "source");
        List<StoreBuilder<?>> builders = List.of(
            Stores.timestampedKeyValueStoreWithHeadersBuilder(
                Stores.persistentTimestampedKeyValueStoreWithHeaders("rows-disk"), Serdes.String(), Serdes.String()),
            Stores.timestampedKeyValueStoreWithHeadersBuilder(
                Stores.inMemoryKeyValueStore("rows-memory"), Serdes.String(), Serdes.String()),
            Stores.timestampedWindowStoreWithHeadersBuilder(
                Stores.persistentTimestampedWindowStoreWithHeaders("windows-disk", RETENTION, Duration.ofMillis(10), false),
                Serdes.String(), Serdes.String()),
            Stores.timestampedWindowStoreWithHeadersBuilder(
                Stores.inMemoryWindowStore("windows-memory", RETENTION, Duration.ofMillis(10), false),
                Serdes.String(), Serdes.String()),
            Stores.sessionStoreWithHeadersBuilder(
                Stores.persistentSessionStoreWithHeaders("sessions-disk", RETENTION), Serdes.String(), Serdes.String()),
            Stores.sessionStoreWithHeadersBuilder(
                Stores.inMemorySessionStore("sessions-memory", RETENTION), Serdes.String(), Serdes.String()));
        for (StoreBuilder<?> builder : builders) {
            if (caching) {
                builder.withCachingEnabled();
            }
            topology.addStateStore(builder, "processor");
        }
        topology.addSink("sink", properties.getProperty("headers.output"), Serdes.String().serializer(),
            Serdes.String().serializer(), "processor");
        return topology;
    }

    /** Does to each store what the value of a record says, and forwards what the stores then have. */
    private static final class Commands extends ContextualProcessor<String, String, String, String> {

        @Override
        public void process(Record<String, String> record) {
            StringBuilder text = new StringBuilder();
            for (String where : List.of("disk", "memory")) {
                rows(context().getStateStore("rows-" + where), record, text);
                windows(context().getStateStore("windows-" + where), record, text);
                sessions(context().getStateStore("sessions-" + where), record, text);
            }
            context().forward(record.withValue(text.toString()));
        }

        private static void rows(
            KeyValueStore<String, ValueTimestampHeaders<String>> store, Record<String, String> record, StringBuilder text) {
            String key = record.key();
            switch (record.value()) {
                case "read" -> { }
                case "delete" -> text.append(shown(store.delete(key)));
                case "null" -> store.put(key, null);
                case "absent" -> text.append(shown(store.putIfAbsent(key, value(record))));
                default -> store.put(key, value(record));
            }
            text.append(shown(store.get(key)));
            try (var rows = store.all()) {
                rows.forEachRemaining(row -> text.append(" ").append(row.key).append("=").append(shown(row.value)));
            }
        }

        private static void windows(
            WindowStore<String, ValueTimestampHeaders<String>> store, Record<String, String> record, StringBuilder text) {
            String key = record.key();
            long start = record.timestamp() / 10 * 10;
            switch (record.value()) {
                case "read" -> { }
                case "delete", "null" -> store.put(key, null, start);
                default -> store.put(key, value(record), start);
            }
            text.append(";").append(shown(store.fetch(key, start)));
            try (var rows = store.fetch(key, 0, Long.MAX_VALUE)) {
                rows.forEachRemaining(row -> text.append(" ").append(row.key).append("=").append(shown(row.value)));
            }
        }

        private static void sessions(
            SessionStore<String, AggregationWithHeaders<String>> store, Record<String, String> record, StringBuilder text) {
            String key = record.key();
            long start = record.timestamp() / 10 * 10;
            Windowed<String> session = new Windowed<>(key, new SessionWindow(start, start + 5));
            switch (record.value()) {
                case "read" -> { }
                case "delete" -> store.remove(session);
                case "null" -> store.put(session, null);
                default -> store.put(session, AggregationWithHeaders.make(record.value(), record.headers()));
            }
            text.append(";").append(shown(store.fetchSession(key, start, start + 5)));
            try (var rows = store.findSessions(key, 0, Long.MAX_VALUE)) {
                rows.forEachRemaining(row ->
                    text.append(" ").append(row.key.window().start()).append("=").append(shown(row.value)));
            }
            text.append("\n");
        }

        private static ValueTimestampHeaders<String> value(Record<String, String> record) {
            // The value's own time and headers, to tell them from those of the record.
            Headers headers = new RecordHeaders(record.headers().toArray());
            if (record.value().startsWith("more")) {
                headers.add("more", "é".getBytes(StandardCharsets.UTF_8));
            }
            return ValueTimestampHeaders.make(record.value(), record.timestamp() + 1, headers);
        }
    }

    private static String shown(ValueTimestampHeaders<String> found) {
        return found == null ? "-" : found.value() + "@" + found.timestamp() + shown(found.headers());
    }

    private static String shown(AggregationWithHeaders<String> found) {
        return found == null ? "-" : found.aggregation() + shown(found.headers());
    }

    private static String shown(Headers headers) {
        List<String> shown = new ArrayList<>();
        for (Header header : headers) {
            shown.add(header.key() + ":" + hexadecimal(header.value()));
        }
        return "[" + String.join(",", shown) + "]";
    }

    private static String hexadecimal(byte[] data) {
        return data == null ? "null" : HexFormat.of().formatHex(data);
    }

    /** Commands are lines "key value timestamp name=hexadecimal ...", without "=" for a header that is null. */
    private static void record(Topology topology, Properties properties, Path commands) throws IOException {
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, properties)) {
            TestInputTopic<String, String> input = driver.createInputTopic(
                properties.getProperty("headers.input"), new StringSerializer(), new StringSerializer());
            for (String line : Files.readAllLines(commands)) {
                String[] parts = line.split(" ");
                Headers headers = new RecordHeaders();
                for (int i = 3; i < parts.length; i++) {
                    String[] pair = parts[i].split("=", 2);
                    headers.add(pair[0], pair.length < 2 ? null : HexFormat.of().parseHex(pair[1]));
                }
                input.pipeInput(new TestRecord<>(parts[0], parts[1], headers, Long.parseLong(parts[2])));
                for (String topic : new TreeSet<>(driver.producedTopicNames())) {
                    var output = driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                    for (TestRecord<byte[], byte[]> found : output.readRecordsToList()) {
                        System.out.println(topic + " " + hexadecimal(found.key()) + " " + hexadecimal(found.value()) + " "
                            + found.timestamp() + " " + shown(found.headers()));
                    }
                }
            }
        }
    }
}
