import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The benchmark's topologies in Kafka Streams, as benchmarks/topologies.py has them in Penstock.
 *
 * <p>Arguments: topology, file with the properties. Its topics are in BENCHMARK_INPUT and BENCHMARK_OUTPUT. Runs until
 * SIGTERM.
 */
public class KafkaStreamsBenchmark {

    /** An order, as the input topic's JSON has it. */
    public record Purchase(String user, int amount, String page, long ts) {}

    /** What becomes of it. */
    public record DoubledPurchase(String user, int amount, String page, long ts, int x) {}

    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[1]))) {
            properties.load(reader);
        }
        StreamsBuilder builder = new StreamsBuilder();
        String input = System.getenv("BENCHMARK_INPUT");
        String output = System.getenv("BENCHMARK_OUTPUT");
        switch (arguments[0]) {
            case "count" -> count(builder, input, output);
            case "windowed_count" -> windowedCount(builder, input, output);
            case "map_filter" -> mapFilter(builder, input, output);
            default -> throw new IllegalArgumentException("no such topology: " + arguments[0]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    private static void count(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    private static void windowedCount(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(10)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.valueSerde(Serdes.Long()));
    }

    private static void mapFilter(StreamsBuilder builder, String input, String output) {
        KStream<String, Purchase> purchases =
            builder.stream(input, Consumed.with(Serdes.String(), json(Purchase.class)));
        purchases
            .filter((key, purchase) -> purchase.amount() % 2 != 0)
            .mapValues(p -> new DoubledPurchase(p.user(), p.amount(), p.page(), p.ts(), p.amount() * 2))
            .to(output, Produced.with(Serdes.String(), json(DoubledPurchase.class)));
    }

    private static <T> Serde<T> json(Class<T> type) {
        ObjectReader reader = JSON.readerFor(type);
        ObjectWriter writer = JSON.writerFor(type);
        return Serdes.serdeFrom(
            (topic, value) -> {
                try {
                    return writer.writeValueAsBytes(value);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            },
            (topic, data) -> {
                try {
                    return reader.readValue(data);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            });
    }
}
