/*
 * Writes the StreamsGroupHeartbeat with which Kafka Streams joins a group, for each golden case: one JSON document on
 * stdout, {file: base64 of the request in the version given, null for a topology that Kafka Streams cannot describe}.
 *
 * It lies in Kafka's package because the class that builds the request is not public. README.md beside it says how it
 * is run.
 */
package org.apache.kafka.clients.consumer.internals;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.Optional;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.processor.internals.InternalTopologyBuilder;
import org.apache.kafka.streams.processor.internals.StreamThread;
import org.apache.kafka.streams.processor.internals.TopologyMetadata;

public final class HeartbeatRecorder {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String MEMBER_ID = "member";
    private static final UUID PROCESS_ID = new UUID(1, 2);
    private static final int REBALANCE_TIMEOUT_MS = 300_000;

    private HeartbeatRecorder() {
    }

    /** Arguments: the version of the request, folders with cases. */
    public static void main(final String[] args) throws Exception {
        final short version = Short.parseShort(args[0]);
        final ObjectNode recorded = JSON.createObjectNode();
        for (final String folder : Arrays.asList(args).subList(1, args.length)) {
            final File[] files = new File(folder).listFiles((dir, name) -> name.endsWith(".json"));
            Arrays.sort(files);
            for (final File file : files) {
                final JsonNode spec = JSON.readTree(file);
                if (spec.path("describe").isNull()) {
                    continue; // refused at build
                }
                try {
                    recorded.put(file.getName(), Base64.getEncoder().encodeToString(request(spec, version)));
                } catch (final InvocationTargetException failure) {
                    System.err.println(file.getName() + ": " + failure.getCause());
                    recorded.putNull(file.getName());
                }
            }
        }
        System.out.println(JSON.writerWithDefaultPrettyPrinter().writeValueAsString(recorded));
        System.exit(0);
    }

    private static byte[] request(final JsonNode spec, final short version) throws Exception {
        final Properties properties = new Properties();
        spec.get("config").properties().forEach(entry -> {
            if (!entry.getKey().endsWith("handler") && !entry.getKey().equals("emit.interval.ms")) {
                properties.put(entry.getKey(), entry.getValue().asText());
            }
        });
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:1");
        final StreamsConfig config = new StreamsConfig(properties);
        final StreamsBuilder builder = new StreamsBuilder(new TopologyConfig(config));
        run(builder, spec.get("topology"));
        final Topology topology = builder.build(properties);
        final Field field = Topology.class.getDeclaredField("internalTopologyBuilder");
        field.setAccessible(true);
        final TopologyMetadata metadata = new TopologyMetadata((InternalTopologyBuilder) field.get(topology), config);
        metadata.buildAndRewriteTopology();
        final Method describe = StreamThread.class.getDeclaredMethod("initStreamsRebalanceData",
            UUID.class, StreamsConfig.class, Optional.class, Optional.class, TopologyMetadata.class);
        describe.setAccessible(true);
        final StreamsRebalanceData data = (StreamsRebalanceData) describe.invoke(
            null, PROCESS_ID, config, Optional.empty(), Optional.empty(), metadata);
        return encoded(heartbeat(spec.get("config").get("application.id").asText(), data), version);
    }

    /** The goldens' own interpreter, which is not public either. */
    private static void run(final StreamsBuilder builder, final JsonNode topology) throws Exception {
        final Class<?> type = Class.forName("penstock.Interpreter");
        final var constructor = type.getDeclaredConstructor(StreamsBuilder.class);
        constructor.setAccessible(true);
        final Method run = type.getDeclaredMethod("run", JsonNode.class);
        run.setAccessible(true);
        run.invoke(constructor.newInstance(builder), topology);
    }

    private static StreamsGroupHeartbeatRequestData heartbeat(final String groupId, final StreamsRebalanceData data) {
        final LogContext log = new LogContext();
        final Metrics metrics = new Metrics();
        final StreamsMembershipManager member = new StreamsMembershipManager(
            groupId, data, new SubscriptionState(log, AutoOffsetResetStrategy.EARLIEST), null, log, Time.SYSTEM, metrics);
        member.onSubscriptionUpdated();
        member.onConsumerPoll();
        final StreamsGroupHeartbeatRequestData request =
            new StreamsGroupHeartbeatRequestManager.HeartbeatState(data, member, REBALANCE_TIMEOUT_MS).buildRequestData();
        metrics.close();
        return request.setMemberId(MEMBER_ID); // it is random
    }

    private static byte[] encoded(final StreamsGroupHeartbeatRequestData request, final short version) {
        final ByteBuffer buffer = MessageUtil.toByteBufferAccessor(request, version).buffer();
        final byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }
}
