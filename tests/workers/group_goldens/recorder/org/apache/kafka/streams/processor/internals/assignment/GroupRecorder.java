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
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.SortedSet;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.InternalTopicManager;
import org.apache.kafka.streams.processor.internals.StreamsPartitionAssignor;
import org.apache.kafka.streams.processor.internals.TopologyMetadata.Subtopology;

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
    private final TreeMap<ProcessId, Map<String, Optional<String>>> clientRacks = new TreeMap<>();
    private final TreeMap<TaskId, Set<TopicPartition>> sources = new TreeMap<>();
    private final TreeMap<TaskId, Set<TopicPartition>> changelogs = new TreeMap<>();
    private final Map<TopicPartition, List<Node>> replicas = new HashMap<>();

    private GroupRecorder(final long seed) {
        random = new Random(seed);
    }

    /** Arguments: the assignor (high_availability or sticky), how many groups, and "racks" for groups with racks. */
    public static void main(final String[] args) throws Exception {
        for (int seed = 0; seed < Integer.parseInt(args[1]); seed++) {
            System.out.println(new GroupRecorder(7_000 + seed).record(args[0], seed, args.length > 2));
        }
    }

    private String record(final String assignor, final int seed, final boolean withRacks) throws Exception {
        makeTasks();
        makeMembers(seed % 3 > 0, withRacks ? 16 : 7);
        final boolean tagged = seed % 5 == 4;
        final int warmups = 1 + random.nextInt(3);
        final int standbys = random.nextInt(3);
        if (withRacks) {
            makeRacks();
        }
        final String strategy = !withRacks ? "none" : seed % 2 == 0 ? "min_traffic" : "balance_subtopology";
        final AssignmentConfigs configs = new AssignmentConfigs(
            100L, warmups, standbys, 600_000L, tagged ? List.of("zone") : List.of(),
            withRacks ? cost() : OptionalInt.empty(), withRacks ? cost() : OptionalInt.empty(), strategy);
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
        final boolean probing = made.assign(clients, grown(all), grown(stateful), rackAware(configs), configs);
        final StringJoiner json = object();
        add(json, "warmups", configs.maxWarmupReplicas());
        add(json, "standbys", configs.numStandbyReplicas());
        add(json, "tags", tagged ? "[\"zone\"]" : "[]");
        add(json, "tasks", ids(all));
        add(json, "stateful", ids(stateful));
        if (withRacks) {
            add(json, "strategy", quoted(strategy));
            add(json, "costs", "[" + text(configs.rackAwareTrafficCost()) + "," + text(configs.rackAwareNonOverlapCost()) + "]");
            add(json, "sources", racksOf(sources));
            add(json, "changelogs", racksOf(changelogs));
        }
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
    private void makeMembers(final boolean past, final int most) {
        final int count = 1 + random.nextInt(most);
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

    /** Clients in one to four racks, replicas in up to three of them; in a few groups some are in none. */
    private void makeRacks() {
        final int count = 1 + random.nextInt(4);
        final boolean everywhere = random.nextInt(10) > 0;
        final boolean everyone = random.nextInt(10) > 0;
        for (final Map.Entry<ProcessId, TreeSet<String>> entry : consumers.entrySet()) {
            final Optional<String> rack = Optional.of("rack" + random.nextInt(count));
            final Map<String, Optional<String>> ofThreads = new TreeMap<>();
            entry.getValue().forEach(
                consumer -> ofThreads.put(consumer, everyone || random.nextInt(6) > 0 ? rack : Optional.empty()));
            clientRacks.put(entry.getKey(), ofThreads);
        }
        final int factor = 1 + random.nextInt(3);
        final int topics = 1 + random.nextInt(2);
        for (final TaskId task : all) {
            sources.put(task, new HashSet<>());
            for (final String topic : List.of("in-", "more-").subList(0, topics)) {
                final TopicPartition partition = new TopicPartition(topic + task.subtopology(), task.partition());
                sources.get(task).add(partition);
                replicas.put(partition, nodes(count, factor, everywhere));
            }
            if (stateful.contains(task)) {
                final TopicPartition partition = new TopicPartition("changelog-" + task.subtopology(), task.partition());
                changelogs.put(task, Set.of(partition));
                replicas.put(partition, nodes(count, factor, everywhere));
            }
        }
    }

    private List<Node> nodes(final int racks, final int factor, final boolean everywhere) {
        final List<Node> nodes = new ArrayList<>();
        for (int replica = 0; replica < factor; replica++) {
            final String rack = everywhere || random.nextInt(40) > 0 ? "rack" + random.nextInt(racks) : null;
            nodes.add(new Node(100 * nodes.size() + random.nextInt(100), "host", 9092, rack));
        }
        return nodes;
    }

    private OptionalInt cost() {
        return random.nextInt(3) > 0 ? OptionalInt.empty() : OptionalInt.of(random.nextInt(12));
    }

    private RackAwareTaskAssignor rackAware(final AssignmentConfigs configs) {
        final Map<Subtopology, Set<TaskId>> groups = new HashMap<>();
        all.forEach(task ->
            groups.computeIfAbsent(new Subtopology(task.subtopology(), null), k -> new HashSet<>()).add(task));
        final List<PartitionInfo> known = new ArrayList<>();
        for (final Set<TopicPartition> partitions : sources.values()) {
            for (final TopicPartition partition : partitions) {
                // As a repartition topic, about which a leader asks the brokers.
                final boolean internal = partition.topic().startsWith("more-");
                final Node[] nodes = internal ? new Node[0] : replicas.get(partition).toArray(new Node[0]);
                known.add(new PartitionInfo(partition.topic(), partition.partition(), null, nodes, nodes));
            }
        }
        return new RackAwareTaskAssignor(new Cluster("cluster", Set.of(), known, Set.of(), Set.of()), sources, changelogs,
            groups, clientRacks, new Topics(), configs, Time.SYSTEM);
    }

    /** Answers for internal topics. */
    private final class Topics extends InternalTopicManager {
        Topics() {
            super(Time.SYSTEM, null, new StreamsConfig(Map.of("application.id", "a", "bootstrap.servers", "localhost:1")));
        }

        @Override
        public Map<String, List<TopicPartitionInfo>> getTopicPartitionInfo(final Set<String> topics) {
            final Map<String, List<TopicPartitionInfo>> found = new HashMap<>();
            replicas.forEach((partition, nodes) -> {
                if (topics.contains(partition.topic())) {
                    found.computeIfAbsent(partition.topic(), k -> new ArrayList<>())
                        .add(new TopicPartitionInfo(partition.partition(), nodes.get(0), nodes, nodes));
                }
            });
            return found;
        }
    }

    // Outputs

    /** Of each task, the racks of each partition's replicas; null for a replica in none. */
    private String racksOf(final TreeMap<TaskId, Set<TopicPartition>> read) {
        final StringJoiner json = object();
        read.forEach((task, partitions) -> {
            final StringJoiner one = object();
            for (final TopicPartition partition : partitions) {
                final TreeSet<String> racks = new TreeSet<>();
                replicas.get(partition).forEach(node -> racks.add(node.rack() == null ? "null" : quoted(node.rack())));
                add(one, partition.topic(), racks);
            }
            add(json, task.toString(), one);
        });
        return json.toString();
    }

    private static String text(final OptionalInt cost) {
        return cost.isPresent() ? Integer.toString(cost.getAsInt()) : "null";
    }

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
            if (!clientRacks.isEmpty()) {
                add(one, "rack", clientRacks.get(id).get(thread).map(GroupRecorder::quoted).orElse("null"));
            }
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
