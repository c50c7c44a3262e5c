/*
 * Writes what Kafka Streams' leader makes of seeded groups, from what their members send to the tasks of each thread: one
 * group a line, as JSON.
 *
 * It lies in Kafka's package because ClientState is not public. README.md beside it says how it is run.
 */
package org.apache.kafka.streams.processor.internals.assignment;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.SortedSet;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.InternalTopicManager;
import org.apache.kafka.streams.processor.internals.StreamsPartitionAssignor;

public final class GroupRecorder {
    private static final long END_OFFSET_SUM = 1_000L;
    private static final long LATEST_OFFSET = -2L;

    private final Random random;
    private final TreeSet<TaskId> all = new TreeSet<>();
    private final TreeSet<TaskId> stateful = new TreeSet<>();
    private final Map<TopicPartition, TaskId> taskOf = new HashMap<>();
    private final TreeMap<ProcessId, TreeSet<String>> consumers = new TreeMap<>();
    private final TreeMap<String, TreeSet<TaskId>> owned = new TreeMap<>();
    private final TreeMap<String, TreeMap<TaskId, Long>> sums = new TreeMap<>();
    private final TreeMap<ProcessId, Map<String, String>> tags = new TreeMap<>();

    private GroupRecorder(final long seed) {
        random = new Random(seed);
    }

    /** Arguments: the assignor (high_availability or sticky), how many groups. */
    public static void main(final String[] args) throws Exception {
        for (int seed = 0; seed < Integer.parseInt(args[1]); seed++) {
            System.out.println(new GroupRecorder(7_000 + seed).record(args[0], seed));
        }
    }

    private String record(final String assignor, final int seed) throws Exception {
        makeTasks();
        makeMembers(seed % 3 > 0);
        final boolean tagged = seed % 5 == 4;
        final AssignmentConfigs configs = new AssignmentConfigs(
            100L, 1 + random.nextInt(3), random.nextInt(3), 600_000L, tagged ? List.of("zone") : List.of(),
            OptionalInt.empty(), OptionalInt.empty(), "none");
        final Map<ProcessId, ClientState> clients = new HashMap<>();
        final Map<TaskId, Long> ends = new HashMap<>();
        stateful.forEach(task -> ends.put(task, END_OFFSET_SUM));
        for (final ProcessId id : inTheOrderOfALeader()) {
            final ClientState client = new ClientState(id, tags.get(id));
            for (final String consumer : consumers.get(id)) {
                final List<TopicPartition> partitions = new ArrayList<>();
                owned.get(consumer).forEach(task -> partitions.add(partition(task)));
                client.incrementCapacity();
                client.addOwnedPartitions(partitions, consumer);
                client.addPreviousTasksAndOffsetSums(consumer, sums.get(consumer));
            }
            client.initializePrevTasks(taskOf, false);
            client.computeTaskLags(id, ends);
            clients.put(id, client);
        }
        final LegacyTaskAssignor made =
            assignor.equals("sticky") ? new LegacyStickyTaskAssignor() : new HighAvailabilityTaskAssignor();
        final RackAwareTaskAssignor racks = new RackAwareTaskAssignor(
            new Cluster("cluster", Set.of(), List.of(), Set.of(), Set.of()), Map.of(), Map.of(), Map.of(), null,
            new InternalTopicManager(Time.SYSTEM, null,
                new StreamsConfig(Map.of("application.id", "a", "bootstrap.servers", "localhost:1"))),
            configs, Time.SYSTEM);
        final boolean probing = made.assign(clients, grown(all), grown(stateful), racks, configs);
        final StringJoiner json = object();
        add(json, "warmups", configs.maxWarmupReplicas());
        add(json, "standbys", configs.numStandbyReplicas());
        add(json, "tags", tagged ? "[\"zone\"]" : "[]");
        add(json, "tasks", ids(all));
        add(json, "stateful", ids(stateful));
        add(json, "probing", probing);
        final StringJoiner members = object();
        for (final ProcessId id : consumers.keySet()) {
            members.add(quoted(id.toString()) + ":" + client(id, clients.get(id)));
        }
        add(json, "clients", members.toString());
        return json.toString();
    }

    /** A set that was filled one by one, as those of StreamsPartitionAssignor. */
    private static Set<TaskId> grown(final Collection<TaskId> tasks) {
        final Set<TaskId> set = new HashSet<>();
        set.addAll(tasks);
        return set;
    }

    /** As StreamsPartitionAssignor meets them: members, then clients by the order of their hash tables. */
    private Set<ProcessId> inTheOrderOfALeader() {
        final Map<String, ProcessId> subscriptions = new HashMap<>();
        for (final Map.Entry<ProcessId, TreeSet<String>> entry : consumers.entrySet()) {
            entry.getValue().forEach(consumer -> subscriptions.put(consumer, entry.getKey()));
        }
        final Map<ProcessId, Boolean> metadata = new HashMap<>();
        subscriptions.values().forEach(id -> metadata.put(id, true));
        return metadata.keySet();
    }

    // Inputs

    private void makeTasks() {
        final int subtopologies = 1 + random.nextInt(5);
        for (int subtopology = 0; subtopology < subtopologies; subtopology++) {
            final boolean withState = random.nextInt(3) > 0;
            final int partitions = 1 + random.nextInt(12);
            for (int partition = 0; partition < partitions; partition++) {
                final TaskId task = new TaskId(subtopology, partition);
                all.add(task);
                taskOf.put(partition(task), task);
                if (withState) {
                    stateful.add(task);
                }
            }
        }
    }

    private static TopicPartition partition(final TaskId task) {
        return new TopicPartition("in-" + task.subtopology(), task.partition());
    }

    /** Clients without a past, or with one: tasks that run there or are still restored, copies of any age. */
    private void makeMembers(final boolean past) {
        final int count = 1 + random.nextInt(7);
        final List<String> names = new ArrayList<>();
        for (int client = 0; client < count; client++) {
            final ProcessId id = new ProcessId(new UUID(random.nextLong(), random.nextLong()));
            final TreeSet<String> threads = new TreeSet<>();
            for (int thread = 0; thread <= random.nextInt(4); thread++) {
                final String name = "consumer-" + Integer.toHexString(random.nextInt()) + "-" + client + "-" + thread;
                threads.add(name);
                names.add(name);
                owned.put(name, new TreeSet<>());
                sums.put(name, new TreeMap<>());
            }
            consumers.put(id, threads);
            tags.put(id, Map.of("zone", "zone" + random.nextInt(3)));
        }
        if (!past) {
            return;
        }
        for (final TaskId task : all) {
            final int owner = random.nextInt(names.size() + 1);
            if (owner < names.size()) {
                owned.get(names.get(owner)).add(task);
                if (stateful.contains(task)) {
                    sums.get(names.get(owner)).put(task, random.nextInt(5) == 0 ? random.nextInt(900) : LATEST_OFFSET);
                }
            }
            for (int copies = random.nextInt(3); copies > 0 && stateful.contains(task); copies--) {
                final String holder = names.get(random.nextInt(names.size()));
                if (isNew(task, holder)) {
                    sums.get(holder).put(task, 800L + random.nextInt(220));
                }
            }
        }
    }

    /** One consumer of a client tells of each task on its disk. */
    private boolean isNew(final TaskId task, final String holder) {
        for (final Set<String> threads : consumers.values()) {
            if (threads.contains(holder)) {
                return threads.stream().noneMatch(thread -> sums.get(thread).containsKey(task));
            }
        }
        throw new IllegalStateException(holder);
    }

    // Outputs

    @SuppressWarnings("unchecked")
    private String client(final ProcessId id, final ClientState client) throws Exception {
        final Method toThreads = StreamsPartitionAssignor.class.getDeclaredMethod("assignTasksToThreads",
            Collection.class, boolean.class, SortedSet.class, ClientState.class, Map.class);
        toThreads.setAccessible(true);
        final Map<String, Integer> load = new HashMap<>();
        final SortedSet<String> threads = consumers.get(id);
        final Map<String, List<TaskId>> active = (Map<String, List<TaskId>>) toThreads.invoke(
            null, client.statefulActiveTasks(), true, threads, client, load);
        final Map<String, List<TaskId>> standby = (Map<String, List<TaskId>>) toThreads.invoke(
            null, client.standbyTasks(), true, threads, client, load);
        final Map<String, List<TaskId>> stateless = (Map<String, List<TaskId>>) toThreads.invoke(
            null, client.statelessActiveTasks(), false, threads, client, load);
        final StringJoiner json = object();
        for (final String thread : threads) {
            active.get(thread).addAll(stateless.get(thread));
            final StringJoiner one = object();
            add(one, "owned", ids(owned.get(thread)));
            final StringJoiner offsets = object();
            sums.get(thread).forEach((task, sum) -> offsets.add(quoted(task.toString()) + ":" + sum));
            add(one, "sums", offsets.toString());
            add(one, "active", ids(active.get(thread)));
            add(one, "standby", ids(standby.get(thread)));
            json.add(quoted(thread) + ":" + one);
        }
        return "{\"zone\":" + quoted(tags.get(id).get("zone")) + ",\"threads\":" + json + "}";
    }

    private static String ids(final Collection<TaskId> tasks) {
        final StringJoiner json = new StringJoiner(",", "[", "]");
        new TreeSet<>(tasks).forEach(task -> json.add(quoted(task.toString())));
        return json.toString();
    }

    private static StringJoiner object() {
        return new StringJoiner(",", "{", "}");
    }

    private static void add(final StringJoiner json, final String name, final Object value) {
        json.add(quoted(name) + ":" + value);
    }

    private static String quoted(final String text) {
        return '"' + text + '"';
    }
}
