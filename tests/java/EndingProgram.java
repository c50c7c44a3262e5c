import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Rows with a ttl and timers of keys, as one has to write them in Java: processors that look at all rows for each record.
 *
 * <p>Arguments: "counts CLOCK TTL_MS" or "timers", with CLOCK "stream" or "wall", and a file of commands. Commands are
 * lines "key value timestamp", and "advance MS" for the wall clock. Writes what each command has produced.
 */
public class EndingProgram {

    public static void main(String[] arguments) throws IOException {
        String[] what = arguments[0].split(" ");
        Topology topology = new Topology();
        topology.addSource("source", Serdes.String().deserializer(), Serdes.String().deserializer(), "in");
        if (what[0].equals("counts")) {
            topology.addProcessor("processor", () -> new Counts(what[1].equals("wall"), Long.parseLong(what[2])), "source");
            topology.addStateStore(
                Stores.timestampedKeyValueStoreBuilder(
                    Stores.persistentTimestampedKeyValueStore("counts"), Serdes.String(), Serdes.Long()),
                "processor");
            topology.addSink("sink", "out", Serdes.String().serializer(), Serdes.Long().serializer(), "processor");
        } else {
            topology.addProcessor("processor", Alarms::new, "source");
            topology.addSink("sink", "out", Serdes.String().serializer(), Serdes.String().serializer(), "processor");
        }
        Properties properties = new Properties();
        properties.put("application.id", "app");
        properties.put("bootstrap.servers", "unused:1");
        properties.put("state.dir", arguments[2]);
        run(topology, properties, Path.of(arguments[1]));
    }

    /** Fires what is due, in order of time, before each record and after it; by the wall clock in a punctuation. */
    private abstract static class Ending<V> extends ContextualProcessor<String, String, String, V> {

        private final Map<String, Long> dueByStreamTime = new HashMap<>();
        private final Map<String, Long> dueByWallClock = new HashMap<>();
        private long streamTime = -1;

        @Override
        public void init(ProcessorContext<String, V> context) {
            super.init(context);
            context.schedule(Duration.ofMillis(1), PunctuationType.WALL_CLOCK_TIME, now -> end(dueByWallClock, now));
        }

        @Override
        public void process(Record<String, String> record) {
            streamTime = Math.max(streamTime, record.timestamp());
            end(dueByStreamTime, streamTime);
            handle(record);
            end(dueByStreamTime, streamTime);
        }

        void due(String key, boolean wallClock, long at) {
            cancel(key);
            (wallClock ? dueByWallClock : dueByStreamTime).put(key, at);
        }

        void cancel(String key) {
            dueByStreamTime.remove(key);
            dueByWallClock.remove(key);
        }

        private void end(Map<String, Long> due, long now) {
            while (true) {
                var first = due.entrySet().stream()
                    .filter(entry -> entry.getValue() <= now)
                    .min(Map.Entry.<String, Long>comparingByValue().thenComparing(Map.Entry.comparingByKey()));
                if (first.isEmpty()) {
                    return;
                }
                String key = first.get().getKey();
                long at = first.get().getValue();
                cancel(key);
                ended(key, at);
            }
        }

        abstract void handle(Record<String, String> record);

        abstract void ended(String key, long at);
    }

    /** Counts the records of each key; a count ends so long after its last record. */
    private static final class Counts extends Ending<Long> {

        private final boolean wallClock;
        private final long ttl;
        private TimestampedKeyValueStore<String, Long> counts;

        private Counts(boolean wallClock, long ttl) {
            this.wallClock = wallClock;
            this.ttl = ttl;
        }

        @Override
        public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            counts = context.getStateStore("counts");
        }

        @Override
        void handle(Record<String, String> record) {
            String key = record.key();
            ValueAndTimestamp<Long> before = counts.get(key);
            long count = before == null ? 1 : before.value() + 1;
            long timestamp = before == null ? record.timestamp() : Math.max(before.timestamp(), record.timestamp());
            counts.put(key, ValueAndTimestamp.make(count, timestamp));
            due(key, wallClock, (wallClock ? context().currentSystemTimeMs() : timestamp) + ttl);
            context().forward(new Record<>(key, count, timestamp));
        }

        @Override
        void ended(String key, long at) {
            counts.delete(key);
            context().forward(new Record<>(key, null, at));
        }
    }

    /** Takes "stream 30", "wall 30" or "cancel"; another value does nothing. */
    private static final class Alarms extends Ending<String> {

        @Override
        void handle(Record<String, String> record) {
            String[] parts = record.value().split("_");
            if (parts[0].equals("cancel")) {
                cancel(record.key());
            } else if (parts.length == 2) {
                due(record.key(), parts[0].equals("wall"), Long.parseLong(parts[1]));
            }
            context().forward(record);
        }

        @Override
        void ended(String key, long at) {
            context().forward(new Record<>(key, "fired " + at, at));
        }
    }

    private static void run(Topology topology, Properties properties, Path commands) throws IOException {
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, properties, Instant.ofEpochMilli(0))) {
            TestInputTopic<String, String> input =
                driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            List<String> lines = Files.readAllLines(commands);
            for (String line : lines) {
                String[] parts = line.split(" ");
                if (parts[0].equals("advance")) {
                    driver.advanceWallClockTime(Duration.ofMillis(Long.parseLong(parts[1])));
                } else {
                    input.pipeInput(new TestRecord<>(parts[0], parts[1], null, Long.parseLong(parts[2])));
                }
            }
            for (String topic : new TreeSet<>(driver.producedTopicNames())) {
                var output = driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                for (TestRecord<byte[], byte[]> found : output.readRecordsToList()) {
                    // A row that ends is logged at its own time here, and in Java at that of the record being processed.
                    String timestamp = topic.equals("out") ? " " + found.timestamp() : "";
                    System.out.println(topic + " " + hexadecimal(found.key()) + " " + hexadecimal(found.value()) + timestamp);
                }
            }
        }
    }

    private static String hexadecimal(byte[] data) {
        return data == null ? "null" : HexFormat.of().formatHex(data);
    }
}
