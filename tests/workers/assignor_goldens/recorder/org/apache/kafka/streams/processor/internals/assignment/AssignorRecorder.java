/*
 * Writes what Kafka Streams' own task assignors make of seeded groups, as one JSON document on stdout.
 *
 * It lies in Kafka's package because ClientState and RackAwareTaskAssignor are not public. README.md beside it says how
 * it is run. Everything that Kafka goes through in the order of a hash table is given to it sorted, where it lets us.
 */
package org.apache.kafka.streams.processor.internals.assignment;

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
import org.apache.kafka.streams.processor.internals.TopologyMetadata.Subtopology;

public final class AssignorRecorder {
    private static final String[] STRATEGIES = {"none", "min_traffic", "balance_subtopology"};
    private static final long LATEST_OFFSET = -2L;

    private final Random random;
    private final TreeMap<Integer, Integer> partitionCounts = new TreeMap<>();
    private final TreeSet<TaskId> allTasks = new TreeSet<>();
    private final TreeSet<TaskId> statefulTasks = new TreeSet<>();
    private final TreeMap<ProcessId, ClientState> clients = new TreeMap<>();
    private final TreeMap<TaskId, Set<TopicPartition>> sources = new TreeMap<>();
    private final TreeMap<TaskId, Set<TopicPartition>> changelogs = new TreeMap<>();
    private final TreeMap<ProcessId, Map<String, Optional<String>>> racks = new TreeMap<>();
    private final Map<TopicPartition, List<Node>> replicas = new HashMap<>();
    private int rackCount;

    private AssignorRecorder(final long seed) {
        random = new Random(seed);
    }

    public static void main(final String[] args) {
        final int cases = Integer.parseInt(args[1]);
        System.out.println("[");
        for (int seed = 0; seed < cases; seed++) {
            final String recorded = new AssignorRecorder(1000 + seed).record(args[0], seed);
            System.out.println(recorded + (seed < cases - 1 ? "," : ""));
        }
        System.out.println("]");
    }

    private String record(final String assignor, final int seed) {
        final String strategy = STRATEGIES[seed % STRATEGIES.length];
        makeTasks();
        makeRacks();
        makeClients(seed % 2 == 1);
        final boolean tags = seed % 4 == 3;
        final AssignmentConfigs configs = new AssignmentConfigs(
            100L, 1 + random.nextInt(3), random.nextInt(3), 600_000L, tags ? List.of("zone") : List.of(),
            OptionalInt.empty(), OptionalInt.empty(), strategy);
        final StringJoiner json = object();
        add(json, "seed", seed);
        add(json, "strategy", quoted(strategy));
        add(json, "acceptable_recovery_lag", configs.acceptableRecoveryLag());
        add(json, "max_warmup_replicas", configs.maxWarmupReplicas());
        add(json, "num_standby_replicas", configs.numStandbyReplicas());
        add(json, "tags", tags ? "[\"zone\"]" : "[]");
        add(json, "stateless", ids(diff()));
        add(json, "clients", inputs());
        add(json, "source_racks", racksOf(sources));
        add(json, "changelog_racks", racksOf(changelogs));
        final RackAwareTaskAssignor rackAware = rackAware(configs);
        final LegacyTaskAssignor made =
            assignor.equals("sticky") ? new LegacyStickyTaskAssignor() : new HighAvailabilityTaskAssignor();
        add(json, "probing", made.assign(clients, allTasks, statefulTasks, rackAware, configs));
        add(json, "rack_aware", rackAware.canEnableRackAwareAssignor());
        add(json, "assignment", outputs());
        if (rackAware.canEnableRackAwareAssignor()) {
            add(json, "optimizer", optimizer(rackAware));
        }
        return json.toString();
    }

    // Inputs

    private void makeTasks() {
        final int subtopologies = 1 + random.nextInt(4);
        for (int subtopology = 0; subtopology < subtopologies; subtopology++) {
            final boolean stateful = subtopology == 0 || random.nextInt(3) > 0;
            final int topics = 1 + random.nextInt(2);
            final int partitions = 1 + random.nextInt(9);
            partitionCounts.put(subtopology, partitions);
            for (int partition = 0; partition < partitions; partition++) {
                final TaskId task = new TaskId(subtopology, partition);
                allTasks.add(task);
                final Set<TopicPartition> read = new HashSet<>();
                for (int topic = 0; topic < topics; topic++) {
                    read.add(new TopicPartition("in-" + subtopology + "-" + topic, partition));
                }
                sources.put(task, read);
                if (stateful) {
                    statefulTasks.add(task);
                    changelogs.put(task, Set.of(new TopicPartition("changelog-" + subtopology, partition)));
                }
            }
        }
    }

    private void makeRacks() {
        final int count = 2 + random.nextInt(3);
        final Node[] nodes = new Node[count * 2];
        for (int node = 0; node < nodes.length; node++) {
            nodes[node] = new Node(node, "host" + node, 9092, "rack" + node % count);
        }
        final int factor = 1 + random.nextInt(count - 1);
        for (final TreeMap<TaskId, Set<TopicPartition>> read : List.of(sources, changelogs)) {
            for (final Set<TopicPartition> partitions : read.values()) {
                for (final TopicPartition partition : sorted(partitions)) {
                    final int first = random.nextInt(nodes.length);
                    final List<Node> chosen = new ArrayList<>();
                    for (int replica = 0; replica < factor; replica++) {
                        chosen.add(nodes[(first + replica) % nodes.length]);
                    }
                    replicas.put(partition, chosen);
                }
            }
        }
        rackCount = count;
    }

    private static List<TopicPartition> sorted(final Collection<TopicPartition> partitions) {
        final List<TopicPartition> all = new ArrayList<>(partitions);
        all.sort((a, b) -> a.toString().compareTo(b.toString()));
        return all;
    }

    /** Clients without a past, or with one: tasks that ran there, copies of any age. */
    private void makeClients(final boolean past) {
        final int count = 1 + random.nextInt(7);
        final List<TreeSet<TaskId>> active = new ArrayList<>();
        final List<TreeSet<TaskId>> standby = new ArrayList<>();
        for (int client = 0; client < count; client++) {
            active.add(new TreeSet<>());
            standby.add(new TreeSet<>());
        }
        for (final TaskId task : allTasks) {
            final int owner = random.nextInt(count + 1);
            if (past && owner < count) {
                active.get(owner).add(task);
            }
            final int copy = random.nextInt(count + 1);
            if (past && copy < count && copy != owner && statefulTasks.contains(task)) {
                standby.get(copy).add(task);
            }
        }
        for (int client = 0; client < count; client++) {
            final TreeMap<TaskId, Long> lags = new TreeMap<>();
            for (final TaskId task : statefulTasks) {
                if (active.get(client).contains(task)) {
                    lags.put(task, LATEST_OFFSET);
                } else if (standby.get(client).contains(task)) {
                    lags.put(task, (long) random.nextInt(200));
                } else {
                    lags.put(task, 1_000L);
                }
            }
            final ProcessId id = new ProcessId(new UUID(0, client + 1));
            final String rack = "rack" + random.nextInt(rackCount);
            clients.put(id, new ClientState(
                active.get(client), standby.get(client), lags, Map.of("zone", rack), 1 + random.nextInt(3), id));
            racks.put(id, Map.of("consumer-" + client, Optional.of(rack)));
        }
    }

    private RackAwareTaskAssignor rackAware(final AssignmentConfigs configs) {
        final Map<Subtopology, Set<TaskId>> groups = new HashMap<>();
        for (final TaskId task : allTasks) {
            groups.computeIfAbsent(new Subtopology(task.subtopology(), null), k -> new HashSet<>()).add(task);
        }
        final Set<Node> nodes = new HashSet<>();
        final List<PartitionInfo> infos = new ArrayList<>();
        for (final Map.Entry<TopicPartition, List<Node>> entry : replicas.entrySet()) {
            final Node[] all = entry.getValue().toArray(new Node[0]);
            nodes.addAll(entry.getValue());
            infos.add(new PartitionInfo(entry.getKey().topic(), entry.getKey().partition(), all[0], all, all));
        }
        final Cluster cluster = new Cluster("cluster", nodes, infos, Set.of(), Set.of());
        return new RackAwareTaskAssignor(
            cluster, sources, changelogs, groups, racks, new Topics(), configs, Time.SYSTEM);
    }

    /** Answers for the changelogs, which Kafka Streams asks the brokers about. */
    private final class Topics extends InternalTopicManager {
        Topics() {
            super(Time.SYSTEM, null, new StreamsConfig(Map.of("application.id", "a", "bootstrap.servers", "localhost:1")));
        }

        @Override
        public Map<String, List<TopicPartitionInfo>> getTopicPartitionInfo(final Set<String> topics) {
            final Map<String, List<TopicPartitionInfo>> found = new HashMap<>();
            for (final Map.Entry<TopicPartition, List<Node>> entry : replicas.entrySet()) {
                if (topics.contains(entry.getKey().topic())) {
                    found.computeIfAbsent(entry.getKey().topic(), k -> new ArrayList<>()).add(new TopicPartitionInfo(
                        entry.getKey().partition(), entry.getValue().get(0), entry.getValue(), entry.getValue()));
                }
            }
            return found;
        }
    }

    // Outputs

    /** What the optimizer alone makes of tasks that are dealt out in turn: the costs before and after. */
    private String optimizer(final RackAwareTaskAssignor rackAware) {
        final StringJoiner json = new StringJoiner(",", "[", "]");
        for (final int[] costs : new int[][] {{10, 1}, {1, 10}, {1, 0}}) {
            final TreeMap<ProcessId, ClientState> dealt = new TreeMap<>();
            for (final Map.Entry<ProcessId, ClientState> entry : clients.entrySet()) {
                dealt.put(entry.getKey(), new ClientState(entry.getKey(), entry.getValue().capacity(), Map.of()));
            }
            final List<ClientState> turns = new ArrayList<>(dealt.values());
            int turn = 0;
            for (final TaskId task : allTasks) {
                turns.get(turn++ % turns.size()).assignActive(task);
            }
            final StringJoiner one = object();
            add(one, "costs", "[" + costs[0] + "," + costs[1] + "]");
            add(one, "before", rackAware.activeTasksCost(allTasks, dealt, costs[0], costs[1]));
            add(one, "after", rackAware.optimizeActiveTasks(allTasks, dealt, costs[0], costs[1]));
            json.add(one.toString());
        }
        return json.toString();
    }

    private String inputs() {
        final StringJoiner json = new StringJoiner(",", "{", "}");
        for (final Map.Entry<ProcessId, ClientState> entry : clients.entrySet()) {
            final ClientState client = entry.getValue();
            final StringJoiner lags = new StringJoiner(",", "{", "}");
            for (final TaskId task : statefulTasks) {
                if (client.lagFor(task) != 1_000L) {
                    lags.add(quoted(task.toString()) + ":" + client.lagFor(task));
                }
            }
            final StringJoiner one = object();
            add(one, "threads", client.capacity());
            add(one, "rack", quoted(racks.get(entry.getKey()).values().iterator().next().get()));
            add(one, "active", ids(client.prevActiveTasks()));
            add(one, "standby", ids(client.prevStandbyTasks()));
            add(one, "lags", lags.toString());
            json.add(quoted(Long.toString(entry.getKey().id().getLeastSignificantBits())) + ":" + one);
        }
        return json.toString();
    }

    private String outputs() {
        final StringJoiner json = new StringJoiner(",", "{", "}");
        for (final Map.Entry<ProcessId, ClientState> entry : clients.entrySet()) {
            final StringJoiner one = object();
            add(one, "active", ids(entry.getValue().activeTasks()));
            add(one, "standby", ids(entry.getValue().standbyTasks()));
            json.add(quoted(Long.toString(entry.getKey().id().getLeastSignificantBits())) + ":" + one);
        }
        return json.toString();
    }

    private String racksOf(final TreeMap<TaskId, Set<TopicPartition>> read) {
        final StringJoiner json = new StringJoiner(",", "{", "}");
        for (final Map.Entry<TaskId, Set<TopicPartition>> entry : read.entrySet()) {
            final StringJoiner partitions = new StringJoiner(",", "[", "]");
            for (final TopicPartition partition : sorted(entry.getValue())) {
                final StringJoiner names = new StringJoiner(",", "[", "]");
                final Set<String> racksHere = new TreeSet<>();
                replicas.get(partition).forEach(node -> racksHere.add(node.rack()));
                racksHere.forEach(rack -> names.add(quoted(rack)));
                partitions.add(names.toString());
            }
            json.add(quoted(entry.getKey().toString()) + ":" + partitions);
        }
        return json.toString();
    }

    private Set<TaskId> diff() {
        final Set<TaskId> stateless = new TreeSet<>(allTasks);
        stateless.removeAll(statefulTasks);
        return stateless;
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
