import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.ValueJoinerWithStreamAndMappedKey;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/**
 * What Kafka Streams 4.4 has since 4.3, in a TopologyTestDriver; test_parity.py has the same.
 *
 * <p>Arguments: the value of processing.exception.handler.global.enabled. Writes lines of results.
 */
public class ParityProgram {

    private static final Consumed<String, String> TEXT = Consumed.with(Serdes.String(), Serdes.String());
    private static final Produced<String, String> WRITTEN = Produced.with(Serdes.String(), Serdes.String());

    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("application.id", "app");
        properties.put("bootstrap.servers", "unused:1");
        properties.put("processing.exception.handler.global.enabled", arguments[0]);
        properties.put("processing.exception.handler",
            "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler");
        properties.put("errors.dead.letter.queue.topic.name", "dead");
        joins(properties);
        partitioners(properties);
        globalProcessor(properties);
    }

    /** Joins with a global table whose joiner gets both keys (KIP-1340). */
    private static void joins(Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        GlobalKTable<String, String> table = builder.globalTable("table", TEXT);
        KStream<String, String> stream = builder.stream("in", TEXT);
        KeyValueMapper<String, String, String> selector = (key, value) -> value.equals("none") ? null : value.substring(0, 1);
        ValueJoinerWithStreamAndMappedKey<String, String, String, String, String> joiner =
            (streamKey, mappedKey, left, right) -> streamKey + "/" + mappedKey + "/" + left + "/" + right;
        stream.join(table, selector, joiner).to("inner", WRITTEN);
        stream.leftJoin(table, selector, joiner, Named.as("both-keys")).to("left", WRITTEN);
        System.out.print(builder.build().describe());
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties)) {
            pipe(driver, "table", "a", "A", null);
            for (String value : List.of("a1", "b1", "none")) {
                pipe(driver, "in", "k", value, null);
            }
            pipe(driver, "in", null, "a2", null);
            print(driver, "inner");
            print(driver, "left");
        }
    }

    /** The partitions that a record's header names: several get it, none drops it (KIP-837, KIP-1321). */
    private static class ByHeader implements StreamPartitioner<String, String> {

        @Override
        @SuppressWarnings("removal")
        public Optional<Set<Integer>> partitions(String topic, String key, String value, int partitions) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Optional<Set<Integer>> partitions(String topic, String key, String value, Headers headers, int partitions) {
            Header header = headers.lastHeader("to");
            if (header == null) {
                return Optional.empty();
            }
            Set<Integer> found = new HashSet<>();
            for (String number : new String(header.value(), StandardCharsets.UTF_8).split(",")) {
                if (!number.isEmpty()) {
                    found.add(Integer.parseInt(number));
                }
            }
            return Optional.of(found);
        }
    }

    private static void partitioners(Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> stream = builder.stream("in", TEXT);
        stream.to("out", Produced.with(Serdes.String(), Serdes.String(), new ByHeader()));
        stream.repartition(Repartitioned.<String, String>as("again").withStreamPartitioner(new ByHeader())
            .withKeySerde(Serdes.String()).withValueSerde(Serdes.String())).to("repartitioned", WRITTEN);
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties)) {
            for (String to : new String[] {null, "0", "0,0", "", "0,1,2"}) {
                pipe(driver, "in", "k", "to " + to, to);
            }
            print(driver, "out");
            print(driver, "repartitioned");
            System.out.println("dropped " + dropped(driver));
        }
    }

    private static class Numbers extends ContextualProcessor<String, String, Void, Void> {

        @Override
        public void process(Record<String, String> record) {
            KeyValueStore<String, String> store = context().getStateStore("numbers");
            store.put(record.key(), String.valueOf(Integer.parseInt(record.value()) + 1));
        }
    }

    /** A processor of a global store that fails (KIP-1270). */
    private static void globalProcessor(Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.addGlobalStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("numbers"), Serdes.String(),
            Serdes.String()).withLoggingDisabled(), "table", TEXT, Numbers::new);
        builder.stream("in", TEXT).to("out", WRITTEN);
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties)) {
            for (String value : List.of("1", "one", "2")) {
                String result = "done";
                try {
                    pipe(driver, "table", value, value, null);
                } catch (RuntimeException error) {
                    result = "failed";
                }
                System.out.println("global " + value + " " + result);
            }
            List<String> rows = new ArrayList<>();
            driver.<String, String>getKeyValueStore("numbers").all()
                .forEachRemaining(row -> rows.add(row.key + "=" + row.value));
            System.out.println("rows " + rows + " topics " + driver.producedTopicNames());
        }
    }

    private static void pipe(TopologyTestDriver driver, String topic, String key, String value, String to) {
        RecordHeaders headers = new RecordHeaders();
        if (to != null) {
            headers.add("to", to.getBytes(StandardCharsets.UTF_8));
        }
        driver.createInputTopic(topic, new StringSerializer(), new StringSerializer())
            .pipeInput(new TestRecord<>(key, value, headers, 5L));
    }

    private static void print(TopologyTestDriver driver, String topic) {
        for (TestRecord<String, String> record
            : driver.createOutputTopic(topic, new StringDeserializer(), new StringDeserializer()).readRecordsToList()) {
            System.out.println(topic + " " + record.key() + "=" + record.value() + "@" + record.timestamp());
        }
    }

    private static int dropped(TopologyTestDriver driver) {
        return driver.metrics().entrySet().stream().filter(entry -> entry.getKey().name().equals("dropped-records-total"))
            .mapToInt(entry -> ((Double) entry.getValue().metricValue()).intValue()).sum();
    }
}
