import java.util.TreeMap;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.streams.StreamsConfig;

/** Writes each configuration key of Kafka Streams and of its clients: whose it is, its name, type and default. */
public class ConfigKeysProgram {

    public static void main(String[] arguments) {
        show("streams", StreamsConfig.configDef());
        show("consumer", ConsumerConfig.configDef());
        show("producer", ProducerConfig.configDef());
        show("admin", AdminClientConfig.configDef());
    }

    private static void show(String owner, ConfigDef definition) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            String preset = ConfigDef.convertToString(key.hasDefault() ? key.defaultValue : null, key.type);
            String valid = String.valueOf(key.validator).replaceAll("\\s+", " ");
            System.out.println(owner + "|" + key.name + "|" + key.type + "|" + (preset == null ? "" : preset) + "|" + valid);
        }
    }
}
