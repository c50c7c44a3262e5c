import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/**
 * A metrics plugin of a broker: it makes the broker accept the metrics of clients, and writes them to a file.
 *
 * <p>The broker's "telemetry.file" names the file. For each push: client id, client instance id, whether it is the last
 * one, its type, and its bytes behind their length.
 */
public class TelemetryReporter implements MetricsReporter, ClientTelemetry, ClientTelemetryReceiver {

    private DataOutputStream output;

    @Override
    public void configure(Map<String, ?> configs) {
        try {
            output = new DataOutputStream(new BufferedOutputStream(
                new FileOutputStream((String) configs.get("telemetry.file"), true)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return this;
    }

    @Override
    public synchronized void exportMetrics(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        ByteBuffer data = payload.data().duplicate();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        try {
            output.writeUTF(context.clientId());
            output.writeUTF(payload.clientInstanceId().toString());
            output.writeBoolean(payload.isTerminating());
            output.writeUTF(payload.contentType());
            output.writeInt(bytes.length);
            output.write(bytes);
            output.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
        try {
            output.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
