import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescription;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescriptionPlugin;

/**
 * A plugin of a broker that keeps the topologies of streams groups; it writes each to a file with the group's name.
 *
 * <p>The first description of a group named "refused..." is refused.
 */
public class TopologyPlugin implements StreamsGroupTopologyDescriptionPlugin {

    private final Map<String, StreamsGroupTopologyDescription> topologies = new ConcurrentHashMap<>();
    private final Map<String, Boolean> refused = new ConcurrentHashMap<>();

    @Override
    public void configure(Map<String, ?> configs) {
    }

    @Override
    public CompletableFuture<Void> setTopology(String group, int epoch, StreamsGroupTopologyDescription topology) {
        if (group.startsWith("refused") && refused.put(group, true) == null) {
            return CompletableFuture.failedFuture(new IllegalStateException("not yet"));
        }
        topologies.put(group, topology);
        try {
            Path folder = Path.of(System.getProperty("topology.folder"));
            Path written = Files.writeString(folder.resolve(group + ".new"), text(topology));
            Files.move(written, folder.resolve(group));
        } catch (IOException error) {
            return CompletableFuture.failedFuture(error);
        }
        return CompletableFuture.completedFuture(null);
    }

    private static String text(StreamsGroupTopologyDescription topology) {
        StringBuilder text = new StringBuilder();
        topology.subtopologies().forEach(found -> {
            text.append(found.id()).append('\n');
            found.nodes().forEach(node -> text.append("  ").append(node).append('\n'));
        });
        topology.globalStores().forEach(store -> text.append(store).append('\n'));
        return text.toString();
    }

    @Override
    public CompletableFuture<Void> deleteTopology(String group) {
        topologies.remove(group);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<StreamsGroupTopologyDescription> getTopology(String group, int epoch) {
        return CompletableFuture.completedFuture(topologies.get(group));
    }

    @Override
    public void close() {
    }
}
