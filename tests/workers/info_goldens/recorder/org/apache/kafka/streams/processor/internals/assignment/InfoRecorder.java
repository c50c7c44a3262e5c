/*
 * Writes the bytes of Kafka Streams' SubscriptionInfo and AssignmentInfo in all versions, as one JSON document on stdout.
 *
 * It lies in Kafka's package because not all of both is public. README.md beside it says how it is run.
 */
package org.apache.kafka.streams.processor.internals.assignment;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.state.HostInfo;

public final class InfoRecorder {
    private static final TaskId A = new TaskId(0, 1);
    private static final TaskId B = new TaskId(1, 0);
    private static final HostInfo HOST = new HostInfo("localhost", 80);

    private InfoRecorder() {
    }

    public static void main(final String[] args) {
        final Map<TaskId, Long> many = new TreeMap<>();
        many.put(A, -2L);
        many.put(new TaskId(0, 2), 77L);
        many.put(B, 300L);
        many.put(new TaskId(12, 7), 1L << 40);
        final TopicPartition a = new TopicPartition("a", 1);
        final StringJoiner all = new StringJoiner(",\n", "{\n", "\n}");
        for (int version = 1; version <= 11; version++) {
            final Map<TaskId, Set<TopicPartition>> standby = new HashMap<>();
            standby.put(new TaskId(0, 2), Set.of(new TopicPartition("a", 2), new TopicPartition("b", 2)));
            standby.put(new TaskId(2, 3), Set.of(new TopicPartition("d", 3)));
            final StringJoiner one = new StringJoiner(", ", "{", "}");
            one.add(field("subscription", subscription(version, Map.of(A, -2L), Map.of("zone", "a"))));
            one.add(field("subscription_many", subscription(version, many, Map.of("zone", "a", "cluster", "b"))));
            one.add(field("assignment", assignment(
                version, List.of(A), Set.of(a), Map.of(B, Set.of(new TopicPartition("c", 0))))));
            one.add(field("assignment_many", assignment(
                version, List.of(A, A, B), Set.of(a, new TopicPartition("b", 1), new TopicPartition("c", 0)), standby)));
            all.add('"' + Integer.toString(version) + "\": " + one);
        }
        System.out.println(all);
    }

    private static ByteBuffer subscription(
        final int version, final Map<TaskId, Long> sums, final Map<String, String> tags) {
        return new SubscriptionInfo(
            version, version < 3 ? -1 : 11, new ProcessId(new UUID(1, 2)), "localhost:80", sums, (byte) -3,
            AssignorError.SHUTDOWN_REQUESTED.code(), tags).encode();
    }

    private static ByteBuffer assignment(
        final int version, final List<TaskId> active, final Set<TopicPartition> read,
        final Map<TaskId, Set<TopicPartition>> standby) {
        final Set<TopicPartition> copied = new HashSet<>();
        standby.values().forEach(copied::addAll);
        final AssignmentInfo info = new AssignmentInfo(
            version, version < 3 ? -1 : 11, active, standby, Map.of(HOST, read), Map.of(HOST, copied),
            AssignorError.ASSIGNMENT_ERROR.code());
        info.setNextRebalanceTime(1234L);
        return info.encode();
    }

    private static String field(final String name, final ByteBuffer bytes) {
        final StringBuilder hex = new StringBuilder();
        while (bytes.hasRemaining()) {
            hex.append(String.format("%02x", bytes.get()));
        }
        return '"' + name + "\": \"" + hex + '"';
    }
}
