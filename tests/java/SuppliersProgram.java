import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.DslKeyValueParams;
import org.apache.kafka.streams.state.DslSessionParams;
import org.apache.kafka.streams.state.DslStoreSuppliers;
import org.apache.kafka.streams.state.DslWindowParams;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.SessionBytesStoreSupplier;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowBytesStoreSupplier;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Operators whose stores are chosen by DslStoreSuppliers; test_dsl_store_suppliers.py has the same topology.
 *
 * <p>Arguments: a file with the properties, and one with records: topic, key, value or "-" for none, timestamp. Runs them
 * in a TopologyTestDriver, and writes what each record has produced.
 */
public class SuppliersProgram {

    /** Counts of a few keys, tables and sessions in memory, windows of aggregations in RocksDB, those of joins in memory. */
    public static class Mixed implements DslStoreSuppliers {

        @Override
        public KeyValueBytesStoreSupplier keyValueStore(DslKeyValueParams params) {
            return params.name().startsWith("KSTREAM-AGGREGATE")
                ? Stores.lruMap(params.name(), 3) : Stores.inMemoryKeyValueStore(params.name());
        }

        @Override
        public WindowBytesStoreSupplier windowStore(DslWindowParams params) {
            if (params.retainDuplicates()) {
                return Stores.inMemoryWindowStore(params.name(), params.retentionPeriod(), params.windowSize(), true);
            }
            return Stores.persistentTimestampedWindowStore(
                params.name(), params.retentionPeriod(), params.windowSize(), false);
        }

        @Override
        public SessionBytesStoreSupplier sessionStore(DslSessionParams params) {
            return Stores.inMemorySessionStore(params.name(), params.retentionPeriod());
        }
    }

    public static void main(String[] arguments) throws IOException {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        try (TopologyTestDriver driver = new TopologyTestDriver(topology(), properties)) {
            for (String line : Files.readAllLines(Path.of(arguments[1]))) {
                String[] parts = line.split(" ");
                driver.createInputTopic(parts[0], new StringSerializer(), new StringSerializer())
                    .pipeInput(parts[1], parts[2].equals("-") ? null : parts[2], Long.parseLong(parts[3]));
                for (String topic : new TreeSet<>(driver.producedTopicNames())) {
                    var output = driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                    for (TestRecord<byte[], byte[]> found : output.readRecordsToList()) {
                        System.out.println(topic + " " + hexadecimal(found.key()) + " " + hexadecimal(found.value()) + " "
                            + found.timestamp());
                    }
                }
            }
        }
    }

    private static Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        Serde<String> text = Serdes.String();
        KStream<String, String> left = builder.stream("left", Consumed.with(text, text));
        KStream<String, String> right = builder.stream("right", Consumed.with(text, text));
        KGroupedStream<String, String> grouped = left.groupByKey(Grouped.with(text, text));
        Produced<String, String> out = Produced.with(text, text);
        grouped.count().toStream().mapValues(String::valueOf).to("count", out);
        grouped.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofMinutes(1))).count()
            .toStream().map((key, count) -> KeyValue.pair(key.toString(), count.toString())).to("windows", out);
        grouped.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(30), Duration.ofMinutes(1)))
            .count().toStream().map((key, count) -> KeyValue.pair(key.toString(), count.toString())).to("sliding", out);
        grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(20), Duration.ofMinutes(1))).count()
            .toStream().map((key, count) -> KeyValue.pair(key.toString(), String.valueOf(count))).to("sessions", out);
        KTable<String, String> table = builder.table("people", Consumed.with(text, text));
        KTable<String, String> other = builder.table("places", Consumed.with(text, text),
            Materialized.as(BuiltInDslStoreSuppliers.ROCKS_DB));
        table.outerJoin(other, (one, two) -> one + "+" + two, Materialized.with(text, text)).toStream().to("joined", out);
        table.leftJoin(other, value -> "key-" + value.charAt(value.length() - 1), (one, two) -> one + "@" + two,
            Materialized.with(text, text)).toStream().to("foreign", out);
        left.outerJoin(right, (one, two) -> one + "+" + two,
            JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(30), Duration.ofMinutes(1)),
            StreamJoined.with(text, text, text)).to("streams", out);
        return builder.build();
    }

    private static String hexadecimal(byte[] data) {
        return data == null ? "null" : HexFormat.of().formatHex(data);
    }
}
