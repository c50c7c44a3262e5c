import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** Prints descriptions of topologies whose processors share a store by one StoreBuilder (KAFKA-20464). */
public final class SharedStoresProgram {
    private static final class Nothing implements Processor<String, String, String, String> {
        @Override
        public void process(org.apache.kafka.streams.processor.api.Record<String, String> record) {
        }
    }

    private static StoreBuilder<KeyValueStore<String, String>> shared() {
        return Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("shared"), Serdes.String(), Serdes.String());
    }

    private static ProcessorSupplier<String, String, String, String> supplier(StoreBuilder<?>... stores) {
        return new ProcessorSupplier<>() {
            @Override
            public Processor<String, String, String, String> get() {
                return new Nothing();
            }

            @Override
            public Set<StoreBuilder<?>> stores() {
                return Set.of(stores);
            }
        };
    }

    private static Topology suppliersOfTheDsl() {
        StoreBuilder<?> shared = shared();
        StreamsBuilder builder = new StreamsBuilder();
        for (String topic : new String[] {"a", "b", "c"}) {
            builder.<String, String>stream(topic).process(supplier(shared)).to("out-" + topic);
        }
        return builder.build();
    }

    private static Topology suppliers() {
        StoreBuilder<?> shared = shared();
        Topology topology = sources();
        topology.addProcessor("p1", supplier(shared), "s1");
        topology.addProcessor("p2", supplier(shared), "s2");
        topology.addProcessor("p3", supplier(), "s3");
        return topology;
    }

    private static Topology addedTwice() {
        StoreBuilder<?> shared = shared();
        Topology topology = sources();
        topology.addProcessor("p1", supplier(), "s1");
        topology.addProcessor("p2", supplier(), "s2");
        topology.addProcessor("p3", supplier(), "s3");
        topology.addStateStore(shared, "p1", "p2");
        topology.addStateStore(shared, "p3");
        return topology;
    }

    private static Topology suppliedAndAdded() {
        StoreBuilder<?> shared = shared();
        Topology topology = sources();
        topology.addProcessor("p1", supplier(shared), "s1");
        topology.addProcessor("p2", supplier(), "s2");
        topology.addProcessor("p3", supplier(), "s3");
        topology.addStateStore(shared, "p3");
        return topology;
    }

    private static Topology sources() {
        Topology topology = new Topology();
        return topology.addSource("s1", "a").addSource("s2", "b").addSource("s3", "c");
    }

    private static Topology twoBuilders() {
        Topology topology = sources();
        topology.addProcessor("p1", supplier(shared()), "s1");
        topology.addProcessor("p2", supplier(shared()), "s2");
        return topology;
    }

    public static void main(String[] arguments) {
        System.out.print("suppliers_of_the_dsl\n" + suppliersOfTheDsl().describe());
        System.out.print("\0suppliers\n" + suppliers().describe());
        System.out.print("\0added_twice\n" + addedTwice().describe());
        System.out.print("\0supplied_and_added\n" + suppliedAndAdded().describe());
        try {
            twoBuilders();
        } catch (RuntimeException error) {
            System.out.print("\0two_builders\n" + error.getMessage());
        }
    }
}
