import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ReadOnlyRecord;
import org.apache.kafka.streams.query.KeyQuery;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.PositionBound;
import org.apache.kafka.streams.query.Query;
import org.apache.kafka.streams.query.QueryConfig;
import org.apache.kafka.streams.query.QueryResult;
import org.apache.kafka.streams.query.RangeQuery;
import org.apache.kafka.streams.query.TimestampedKeyQuery;
import org.apache.kafka.streams.query.TimestampedKeyWithHeadersQuery;
import org.apache.kafka.streams.query.TimestampedRangeQuery;
import org.apache.kafka.streams.query.TimestampedRangeWithHeadersQuery;
import org.apache.kafka.streams.query.TimestampedWindowKeyWithHeadersQuery;
import org.apache.kafka.streams.query.TimestampedWindowRangeWithHeadersQuery;
import org.apache.kafka.streams.query.VersionedKeyQuery;
import org.apache.kafka.streams.query.WindowKeyQuery;
import org.apache.kafka.streams.query.WindowRangeQuery;
import org.apache.kafka.streams.state.ReadOnlyRecordIterator;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.KeyValue;

/**
 * Queries of interactive queries v2 against the stores of a TopologyTestDriver; test_state_queries.py has the same.
 *
 * <p>Arguments: dsl.store.format, and a file with records: "key value timestamp" in each line. Writes a line for the
 * result of each query.
 */
public class StateQueriesProgram {

    private static final Duration DAY = Duration.ofDays(1);
    private static final String[] STORES = {"counts", "windows", "sessions", "versions"};

    public static void main(String[] arguments) throws IOException {
        Properties properties = new Properties();
        properties.put("application.id", "app");
        properties.put("bootstrap.servers", "unused:1");
        properties.put("dsl.store.format", arguments[0]);
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> text = Consumed.with(Serdes.String(), Serdes.String());
        KGroupedStream<String, String> grouped = builder.stream("in", text).groupByKey();
        grouped.count(Materialized.as("counts"));
        grouped.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(10), DAY)).count(Materialized.as("windows"));
        grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(5), DAY))
            .count(Materialized.as("sessions"));
        builder.table("versioned", text,
            Materialized.as(Stores.persistentVersionedKeyValueStore("versions", Duration.ofHours(1))));
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties)) {
            StringSerializer serializer = new StringSerializer();
            for (String topic : List.of("in", "versioned")) {
                var input = driver.createInputTopic(topic, serializer, serializer);
                for (String line : Files.readAllLines(Path.of(arguments[1]))) {
                    String[] parts = line.split(" ");
                    input.pipeInput(parts[0], parts[1].equals("null") ? null : parts[1], Long.parseLong(parts[2]));
                }
            }
            for (Query<?> query : queries()) {
                for (String store : STORES) {
                    String result;
                    try {
                        result = shown(driver.getAllStateStores().get(store)
                            .query(query, PositionBound.unbounded(), new QueryConfig(false)));
                    } catch (UnsupportedOperationException error) { // of versioned stores, in place of a failure
                        result = "UNKNOWN_QUERY_TYPE";
                    }
                    System.out.println(query.getClass().getSimpleName() + " " + store + " " + result);
                }
            }
        }
    }

    private static List<Query<?>> queries() {
        List<Query<?>> queries = new ArrayList<>();
        Instant zero = Instant.ofEpochMilli(0);
        Instant twenty = Instant.ofEpochMilli(20);
        for (String key : List.of("a", "b", "x")) {
            queries.add(KeyQuery.withKey(key));
            queries.add(KeyQuery.withKey(key).skipCache());
            queries.add(TimestampedKeyQuery.withKey(key));
            queries.add(TimestampedKeyWithHeadersQuery.withKey(key));
            queries.add(WindowKeyQuery.withKeyAndWindowStartRange(key, zero, twenty));
            queries.add(TimestampedWindowKeyWithHeadersQuery.withKeyAndWindowStartRange(key, zero, twenty));
            queries.add(WindowRangeQuery.withKey(key));
            queries.add(VersionedKeyQuery.withKey(key));
            queries.add(VersionedKeyQuery.withKey(key).asOf(Instant.ofEpochMilli(14)));
            queries.add(VersionedKeyQuery.withKey(key).asOf(zero));
            queries.add(MultiVersionedKeyQuery.withKey(key));
            queries.add(MultiVersionedKeyQuery.withKey(key).withAscendingTimestamps());
            queries.add(MultiVersionedKeyQuery.withKey(key).fromTime(Instant.ofEpochMilli(12)).toTime(twenty)
                .withDescendingTimestamps());
        }
        queries.add(RangeQuery.withRange("a", "b"));
        queries.add(RangeQuery.withLowerBound("b"));
        queries.add(RangeQuery.withUpperBound("b").withDescendingKeys());
        queries.add(RangeQuery.withNoBounds().withAscendingKeys());
        queries.add(TimestampedRangeQuery.withNoBounds().withDescendingKeys());
        queries.add(TimestampedRangeWithHeadersQuery.withRange("a", "b").withDescendingKeys());
        queries.add(WindowRangeQuery.withWindowStartRange(zero, twenty));
        queries.add(TimestampedWindowRangeWithHeadersQuery.withWindowStartRange(zero, twenty));
        return queries;
    }

    private static String shown(QueryResult<?> result) {
        if (result.isFailure()) {
            return result.getFailureReason().name();
        }
        return shown(result.getResult());
    }

    private static String shown(Object value) {
        if (value instanceof ReadOnlyRecordIterator<?, ?> records) {
            List<String> rows = new ArrayList<>();
            records.forEachRemaining(row -> rows.add(shown(row)));
            records.close();
            return rows.toString();
        }
        if (value instanceof java.util.Iterator<?> iterator) {
            List<String> rows = new ArrayList<>();
            iterator.forEachRemaining(row -> rows.add(shown(row)));
            return rows.toString();
        }
        if (value instanceof KeyValue<?, ?> row) {
            return shown(row.key) + "=" + shown(row.value);
        }
        if (value instanceof ValueAndTimestamp<?> row) {
            return row.value() + "@" + row.timestamp();
        }
        if (value instanceof VersionedRecord<?> version) {
            return version.value() + "@" + version.timestamp() + ".." + version.validTo().map(String::valueOf).orElse("");
        }
        if (value instanceof ReadOnlyRecord<?, ?> record) {
            List<String> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                headers.add(header.key() + ":" + new String(header.value(), StandardCharsets.UTF_8));
            }
            return shown(record.key()) + "=" + record.value() + "@" + record.timestamp() + headers;
        }
        if (value instanceof Windowed<?> windowed) {
            return windowed.key() + "/" + windowed.window().start() + "-" + windowed.window().end();
        }
        return String.valueOf(value);
    }
}
