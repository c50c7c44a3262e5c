import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Prints the names of all metrics of a running application with stores of all kinds; test_metric_names.py has the same.
 *
 * <p>Argument: a file with the properties; "metrics.input" and "metrics.output" of them name the topics. Prints a line
 * for each name, "group|name|tags", once it has processed "metrics.records" records, and ends.
 */
public final class MetricsProgram {
    private static final Serde<String> TEXT = Serdes.String();

    private static Topology topology(Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> input =
            builder.stream(properties.getProperty("metrics.input"), Consumed.with(TEXT, TEXT));
        var grouped = input.groupByKey(Grouped.with(TEXT, TEXT));
        grouped.count(Materialized.as("rows")).toStream()
            .to(properties.getProperty("metrics.output"), Produced.with(TEXT, Serdes.Long()));
        grouped.count(Materialized.as(Stores.inMemoryKeyValueStore("rows-in-memory")));
        grouped.count(Materialized.as(Stores.lruMap("rows-lru", 100)));
        grouped.reduce((one, other) -> other,
            Materialized.as(Stores.persistentVersionedKeyValueStore("rows-versioned", Duration.ofMinutes(5))));
        var windows = TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(5));
        grouped.windowedBy(windows).count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows"))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()).withName("buffer"));
        grouped.windowedBy(windows).count(Materialized.as(
            Stores.inMemoryWindowStore("windows-in-memory", Duration.ofMinutes(1), Duration.ofSeconds(10), false)));
        grouped.windowedBy(windows).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.as("windows-final"));
        var sessions = SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(5));
        grouped.windowedBy(sessions).count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sessions"));
        grouped.windowedBy(sessions)
            .count(Materialized.as(Stores.inMemorySessionStore("sessions-in-memory", Duration.ofMinutes(1))));
        return builder.build();
    }

    private static double processed(KafkaStreams streams) {
        return streams.metrics().values().stream()
            .filter(metric -> metric.metricName().name().equals("process-total")
                && metric.metricName().group().equals("stream-thread-metrics"))
            .mapToDouble(metric -> (double) metric.metricValue()).sum();
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        try (KafkaStreams streams = new KafkaStreams(topology(properties), properties)) {
            streams.start();
            double expected = Double.parseDouble(properties.getProperty("metrics.records"));
            while (processed(streams) < expected || streams.state() != KafkaStreams.State.RUNNING) {
                Thread.sleep(50);
            }
            TreeSet<String> names = new TreeSet<>();
            streams.metrics().keySet().forEach(name ->
                names.add(name.group() + "|" + name.name() + "|" + String.join(",", new TreeSet<>(name.tags().keySet()))));
            names.forEach(System.out::println);
            System.out.flush();
        }
    }
}
