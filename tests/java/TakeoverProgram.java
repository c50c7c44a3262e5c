import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsMetadata;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The application that test_java_takeover.py hands over between Java and Penstock; its topology is there in Python too.
 *
 * <p>Argument: a file with the properties; "takeover.&lt;name&gt;" of them name its topics. Writes each state of the client
 * to stdout, with an application.server also which hosts have which partitions, and runs until SIGTERM. With "describe"
 * as second argument it writes the topology's description and ends.
 */
public class TakeoverProgram {

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        Topology topology = topology(properties);
        if (arguments.length > 1 && arguments[1].equals("describe")) {
            System.out.print(topology.describe());
            return;
        }
        KafkaStreams streams = new KafkaStreams(topology, properties);
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        if (properties.containsKey("application.server")) {
            Thread watch = new Thread(() -> watchHosts(streams));
            watch.setDaemon(true);
            watch.start();
        }
        stopped.await();
    }

    /** Writes a line with what each host has, as often as that changes. */
    private static void watchHosts(KafkaStreams streams) {
        String written = "";
        while (true) {
            try {
                Thread.sleep(100);
                String hosts = streams.metadataForAllStreamsClients().stream()
                    .map(TakeoverProgram::host).sorted().collect(Collectors.joining("; "));
                if (!hosts.equals(written)) {
                    System.out.println("HOSTS " + hosts);
                    written = hosts;
                }
            } catch (IllegalStateException notRunning) {
                written = "";
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    private static String host(StreamsMetadata host) {
        return host.hostInfo().host() + ":" + host.hostInfo().port() + " active " + listed(host.topicPartitions())
            + " standby " + listed(host.standbyTopicPartitions());
    }

    private static String listed(Set<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(" "));
    }

    private static Topology topology(Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> products = builder.table(
            properties.getProperty("takeover.products"),
            Consumed.with(Serdes.String(), Serdes.String()),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("products"));
        KStream<String, String> orders = builder.stream(
            properties.getProperty("takeover.orders"), Consumed.with(Serdes.String(), Serdes.String()));
        orders.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(properties.getProperty("takeover.counts"), Produced.with(Serdes.String(), Serdes.Long()));
        orders.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(5)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windowed-counts"))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream((windowed, count) -> windowed.key() + "@" + windowed.window().start())
            .to(properties.getProperty("takeover.final"), Produced.with(Serdes.String(), Serdes.Long()));
        orders.selectKey((customer, product) -> product)
            .join(products, (order, product) -> order + "=" + product,
                Joined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .to(properties.getProperty("takeover.joined"), Produced.with(Serdes.String(), Serdes.String()));
        if (!properties.getProperty("takeover.people", "").isEmpty()) {
            favourites(builder, products, properties.getProperty("takeover.people"));
        }
        return builder.build();
    }

    /** Tables whose internal records have another form in older versions; a person's favourite is "product/number". */
    private static void favourites(StreamsBuilder builder, KTable<String, String> products, String topic) {
        KTable<String, String> people = builder.table(
            topic,
            Consumed.with(Serdes.String(), Serdes.String()),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("people"));
        people
            .groupBy(
                (person, favourite) -> KeyValue.pair(favourite.split("/")[0], favourite),
                Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("popularity"));
        people.join(
            products,
            favourite -> favourite.split("/")[0],
            (favourite, name) -> favourite + "=" + name,
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("favourites")
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.String()));
    }
}
