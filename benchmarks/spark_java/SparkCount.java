import java.nio.ByteBuffer;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import scala.Tuple2;
import scala.collection.Iterator;

/** A count by key with transformWithState, as benchmarks/spark_count.py has it in Python. */
public final class SparkCount {

    private SparkCount() {}

    /** Returns key and count of each key of a micro-batch; frame: Kafka's records. */
    public static Dataset<Row> count(Dataset<Row> frame) {
        return frame.selectExpr("CAST(key AS STRING)").as(Encoders.STRING())
            .groupByKey((MapFunction<String, String>) key -> key, Encoders.STRING())
            .transformWithState(
                new Counter(), TimeMode.None(), OutputMode.Update(), Encoders.tuple(Encoders.STRING(), Encoders.BINARY()))
            .toDF("key", "value");
    }

    /** Keeps one count for each key. */
    public static final class Counter extends StatefulProcessor<String, String, Tuple2<String, byte[]>> {
        private transient ValueState<Long> count;

        @Override
        public void init(OutputMode outputMode, TimeMode timeMode) {
            count = getHandle().getValueState("count", Encoders.LONG(), TTLConfig.NONE());
        }

        @Override
        public Iterator<Tuple2<String, byte[]>> handleInputRows(String key, Iterator<String> rows, TimerValues timers) {
            long counted = count.exists() ? count.get() : 0;
            counted += rows.size();
            count.update(counted);
            byte[] value = ByteBuffer.allocate(Long.BYTES).putLong(counted).array();
            return scala.collection.Iterator$.MODULE$.single(new Tuple2<>(key, value));
        }
    }
}
