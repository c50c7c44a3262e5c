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
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
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

    /** Number and sum of a user's purchases. */
    public record Totals(long n, long sum) {}

    /** A user, as the table's JSON has it. */
    public record User(String name, String city) {}

    /** A purchase with the user's city. */
    public record LocatedPurchase(String user, int amount, String page, long ts, String city) {}

    /** How a user has paid, as the payments' JSON has it. */
    public record Payment(String user, String method) {}

    /** A purchase with how its user has paid. */
    public record PaidPurchase(String user, int amount, String page, long ts, String method) {}

    /** Totals with the page of the purchase before. */
    public record TotalsAndPage(long n, long sum, String previous) {}

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
            case "keep_first" -> keepFirst(builder, input, output);
            case "windowed_count" -> windowedCount(builder, input, output);
            case "aggregate", "aggregates" -> aggregate(builder, input, output);
            case "map_filter" -> mapFilter(builder, input, output);
            case "table_join" -> tableJoin(builder, input, System.getenv("BENCHMARK_TABLE"), output);
            case "repartition" -> repartition(builder, input, output);
            case "processor" -> processor(builder, input, output);
            case "window_suppress" -> windowSuppress(builder, input, output);
            case "hopping" -> hopping(builder, input, output);
            case "session" -> session(builder, input, output);
            case "stream_join" -> streamJoin(builder, input, System.getenv("BENCHMARK_PAYMENTS"), output);
            case "two_stores" -> twoStores(builder, input, output);
            case "prefix_scan" -> allKept(builder, input, output, () -> new AddUpAgain(AddUpAgain::prefix));
            case "range_scan" -> allKept(builder, input, output, () -> new AddUpAgain(AddUpAgain::range));
            case "punctuator" -> allKept(builder, input, output, Report::new);
            case "table_table_join" -> tableTableJoin(builder, input, System.getenv("BENCHMARK_PAYMENTS"), output);
            case "foreign_key_join" -> foreignKeyJoin(builder, input, System.getenv("BENCHMARK_TABLE"), output);
            case "retraction" -> retraction(builder, input, output);
            case "versioned" -> versioned(builder, input, System.getenv("BENCHMARK_PAYMENTS"), output);
            default -> throw new IllegalArgumentException("no such topology: " + arguments[0]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setGlobalStateRestoreListener(new RestoreLines());
        streams.setStandbyUpdateListener(new StandbyLines());
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    /** Says when restores begin and end, for benchmarks/recovery.py. */
    private static final class RestoreLines implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            System.out.println("RESTORE start " + System.currentTimeMillis());
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long restored) {}

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long total) {
            System.out.println("RESTORE end " + System.currentTimeMillis());
        }
    }

    /** Says how far standby tasks are. */
    private static final class StandbyLines implements StandbyUpdateListener {
        @Override
        public void onUpdateStart(TopicPartition partition, String store, long start) {}

        @Override
        public void onBatchLoaded(
            TopicPartition partition, String store, TaskId task, long batchEnd, long batchSize, long end) {
            System.out.println("STANDBY " + partition.partition() + " " + batchEnd);
        }

        @Override
        public void onUpdateSuspended(
            TopicPartition partition, String store, long offset, long end, SuspendReason reason) {}
    }

    private static void count(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    private static void keepFirst(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .groupByKey()
            .reduce((first, later) -> first, Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as("first"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));
    }

    private static void windowedCount(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(10)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.valueSerde(Serdes.Long()));
    }

    private static void aggregate(StreamsBuilder builder, String input, String output) {
        builder.stream(input, Consumed.with(Serdes.String(), json(Purchase.class)))
            .groupByKey(Grouped.with(Serdes.String(), json(Purchase.class)))
            .aggregate(
                () -> new Totals(0, 0),
                (key, purchase, totals) -> new Totals(totals.n() + 1, totals.sum() + purchase.amount()),
                Materialized.<String, Totals, KeyValueStore<Bytes, byte[]>>as("totals")
                    .withKeySerde(Serdes.String())
                    .withValueSerde(json(Totals.class)))
            .toStream()
            .to(output, Produced.with(Serdes.String(), json(Totals.class)));
    }

    private static void mapFilter(StreamsBuilder builder, String input, String output) {
        KStream<String, Purchase> purchases =
            builder.stream(input, Consumed.with(Serdes.String(), json(Purchase.class)));
        purchases
            .filter((key, purchase) -> purchase.amount() % 2 != 0)
            .mapValues(p -> new DoubledPurchase(p.user(), p.amount(), p.page(), p.ts(), p.amount() * 2))
            .to(output, Produced.with(Serdes.String(), json(DoubledPurchase.class)));
    }

    private static void tableJoin(StreamsBuilder builder, String input, String table, String output) {
        KTable<String, User> users = builder.table(table, Consumed.with(Serdes.String(), json(User.class)));
        KStream<String, Purchase> purchases =
            builder.stream(input, Consumed.with(Serdes.String(), json(Purchase.class)));
        purchases
            .join(users, (p, user) -> new LocatedPurchase(p.user(), p.amount(), p.page(), p.ts(), user.city()),
                Joined.with(Serdes.String(), json(Purchase.class), json(User.class)))
            .to(output, Produced.with(Serdes.String(), json(LocatedPurchase.class)));
    }

    private static KStream<String, Purchase> purchases(StreamsBuilder builder, String input) {
        return builder.stream(input, Consumed.with(Serdes.String(), json(Purchase.class)));
    }

    private static void repartition(StreamsBuilder builder, String input, String output) {
        purchases(builder, input)
            .selectKey((key, purchase) -> purchase.user())
            .groupByKey(Grouped.with("by-user", Serdes.String(), json(Purchase.class)))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    /** Keeps number and sum of each user's purchases, and forwards them. */
    private static final class AddUp implements Processor<String, Purchase, String, Totals> {
        private ProcessorContext<String, Totals> context;
        private KeyValueStore<String, Totals> totals;

        @Override
        public void init(ProcessorContext<String, Totals> context) {
            this.context = context;
            this.totals = context.getStateStore("totals");
        }

        @Override
        public void process(Record<String, Purchase> record) {
            Totals before = totals.get(record.key());
            long amount = record.value().amount();
            Totals after = before == null ? new Totals(1, amount) : new Totals(before.n() + 1, before.sum() + amount);
            totals.put(record.key(), after);
            context.forward(record.withValue(after));
        }
    }

    private static void processor(StreamsBuilder builder, String input, String output) {
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("totals"), Serdes.String(), json(Totals.class)));
        purchases(builder, input)
            .process(AddUp::new, "totals")
            .to(output, Produced.with(Serdes.String(), json(Totals.class)));
    }

    /** Keeps each user's totals in one store and the page of the last purchase in another, and forwards both. */
    private static final class AddUpAndCompare implements Processor<String, Purchase, String, TotalsAndPage> {
        private ProcessorContext<String, TotalsAndPage> context;
        private KeyValueStore<String, Totals> totals;
        private KeyValueStore<String, String> pages;

        @Override
        public void init(ProcessorContext<String, TotalsAndPage> context) {
            this.context = context;
            this.totals = context.getStateStore("totals");
            this.pages = context.getStateStore("pages");
        }

        @Override
        public void process(Record<String, Purchase> record) {
            Purchase purchase = record.value();
            Totals before = totals.get(record.key());
            String previous = pages.get(record.key());
            Totals after = before == null
                ? new Totals(1, purchase.amount())
                : new Totals(before.n() + 1, before.sum() + purchase.amount());
            totals.put(record.key(), after);
            pages.put(record.key(), purchase.page());
            context.forward(record.withValue(new TotalsAndPage(after.n(), after.sum(), previous)));
        }
    }

    private static void twoStores(StreamsBuilder builder, String input, String output) {
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("totals"), Serdes.String(), json(Totals.class)));
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("pages"), Serdes.String(), Serdes.String()));
        purchases(builder, input)
            .process(AddUpAndCompare::new, "totals", "pages")
            .to(output, Produced.with(Serdes.String(), json(TotalsAndPage.class)));
    }

    /** How the purchases of a user are read. */
    private interface RowsOf {
        KeyValueIterator<String, ValueAndTimestamp<Purchase>> in(
            TimestampedKeyValueStore<String, Purchase> purchases, String user);
    }

    /** Keeps all purchases, and with each one adds up all of its user's. */
    private static final class AddUpAgain implements Processor<String, Purchase, String, Totals> {
        private static final StringSerializer STRING = new StringSerializer();
        private final RowsOf rowsOf;
        private ProcessorContext<String, Totals> context;
        private TimestampedKeyValueStore<String, Purchase> purchases;

        private AddUpAgain(RowsOf rowsOf) {
            this.rowsOf = rowsOf;
        }

        private static KeyValueIterator<String, ValueAndTimestamp<Purchase>> prefix(
            TimestampedKeyValueStore<String, Purchase> purchases, String user) {
            return purchases.prefixScan(user + "/", STRING);
        }

        private static KeyValueIterator<String, ValueAndTimestamp<Purchase>> range(
            TimestampedKeyValueStore<String, Purchase> purchases, String user) {
            return purchases.range(user + "/", user + "/~");
        }

        @Override
        public void init(ProcessorContext<String, Totals> context) {
            this.context = context;
            this.purchases = context.getStateStore("purchases");
        }

        @Override
        public void process(Record<String, Purchase> record) {
            Purchase purchase = record.value();
            purchases.put(record.key() + "/" + purchase.ts(), ValueAndTimestamp.make(purchase, record.timestamp()));
            long number = 0;
            long sum = 0;
            try (KeyValueIterator<String, ValueAndTimestamp<Purchase>> rows = rowsOf.in(purchases, record.key())) {
                while (rows.hasNext()) {
                    number++;
                    sum += rows.next().value.value().amount();
                }
            }
            context.forward(record.withValue(new Totals(number, sum)));
        }
    }

    /** Keeps all purchases, and adds up all of them again and again. */
    private static final class Report implements Processor<String, Purchase, String, Totals> {
        private static final long EVERY_MS = 1000;
        private ProcessorContext<String, Totals> context;
        private TimestampedKeyValueStore<String, Purchase> purchases;

        @Override
        public void init(ProcessorContext<String, Totals> context) {
            this.context = context;
            this.purchases = context.getStateStore("purchases");
            context.schedule(Duration.ofMillis(EVERY_MS), PunctuationType.STREAM_TIME, this::report);
        }

        @Override
        public void process(Record<String, Purchase> record) {
            Purchase purchase = record.value();
            purchases.put(record.key() + "/" + purchase.ts(), ValueAndTimestamp.make(purchase, record.timestamp()));
        }

        private void report(long now) {
            long due = now - now % EVERY_MS;
            long number = 0;
            long sum = 0;
            try (KeyValueIterator<String, ValueAndTimestamp<Purchase>> rows = purchases.all()) {
                while (rows.hasNext()) {
                    ValueAndTimestamp<Purchase> row = rows.next().value;
                    if (row.timestamp() < due) {
                        number++;
                        sum += row.value().amount();
                    }
                }
            }
            if (number > 0) {
                context.forward(new Record<>(due + "-" + context.taskId(), new Totals(number, sum), now));
            }
        }
    }

    private static void allKept(
        StreamsBuilder builder, String input, String output,
        ProcessorSupplier<String, Purchase, String, Totals> processor) {
        builder.addStateStore(Stores.timestampedKeyValueStoreBuilder(
            Stores.persistentTimestampedKeyValueStore("purchases"), Serdes.String(), json(Purchase.class)));
        purchases(builder, input)
            .process(processor, "purchases")
            .to(output, Produced.with(Serdes.String(), json(Totals.class)));
    }

    private static void windowSuppress(StreamsBuilder builder, String input, String output) {
        purchases(builder, input)
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(10)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts"))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .to(output, Produced.valueSerde(Serdes.Long()));
    }

    private static void hopping(StreamsBuilder builder, String input, String output) {
        purchases(builder, input)
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(10)).advanceBy(Duration.ofSeconds(2)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.valueSerde(Serdes.Long()));
    }

    private static void session(StreamsBuilder builder, String input, String output) {
        purchases(builder, input)
            .groupByKey()
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(500), Duration.ofMinutes(1)))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.valueSerde(Serdes.Long()));
    }

    private static void streamJoin(StreamsBuilder builder, String input, String payments, String output) {
        KStream<String, Payment> paid = builder.stream(payments, Consumed.with(Serdes.String(), json(Payment.class)));
        purchases(builder, input)
            .join(paid, KafkaStreamsBenchmark::withPayment,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(500), Duration.ofMinutes(1)),
                StreamJoined.with(Serdes.String(), json(Purchase.class), json(Payment.class)))
            .to(output, Produced.with(Serdes.String(), json(PaidPurchase.class)));
    }

    private static PaidPurchase withPayment(Purchase p, Payment payment) {
        return new PaidPurchase(p.user(), p.amount(), p.page(), p.ts(), payment.method());
    }

    private static void tableTableJoin(StreamsBuilder builder, String input, String payments, String output) {
        KTable<String, Payment> paid = builder.table(payments, Consumed.with(Serdes.String(), json(Payment.class)));
        builder.table(input, Consumed.with(Serdes.String(), json(Purchase.class)))
            .join(paid, KafkaStreamsBenchmark::withPayment)
            .toStream()
            .to(output, Produced.with(Serdes.String(), json(PaidPurchase.class)));
    }

    private static void foreignKeyJoin(StreamsBuilder builder, String input, String table, String output) {
        KTable<String, User> users = builder.table(table, Consumed.with(Serdes.String(), json(User.class)));
        builder.table(input, Consumed.with(Serdes.String(), json(Purchase.class)))
            .join(users, purchase -> "k" + purchase.user().substring(1),
                (p, user) -> new LocatedPurchase(p.user(), p.amount(), p.page(), p.ts(), user.city()),
                TableJoined.as("city"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), json(LocatedPurchase.class)));
    }

    private static void retraction(StreamsBuilder builder, String input, String output) {
        builder.table(input, Consumed.with(Serdes.String(), json(Purchase.class)))
            .groupBy((user, p) -> KeyValue.pair(p.page(), (long) p.amount()),
                Grouped.with("by-page", Serdes.String(), Serdes.Long()))
            .reduce(Long::sum, (sum, amount) -> sum - amount)
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    private static void versioned(StreamsBuilder builder, String input, String payments, String output) {
        KTable<String, Payment> paid = builder.table(
            payments,
            Consumed.with(Serdes.String(), json(Payment.class)),
            Materialized.as(Stores.persistentVersionedKeyValueStore("payments", Duration.ofMinutes(1))));
        purchases(builder, input)
            .join(paid, KafkaStreamsBenchmark::withPayment,
                Joined.with(Serdes.String(), json(Purchase.class), json(Payment.class)))
            .to(output, Produced.with(Serdes.String(), json(PaidPurchase.class)));
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
