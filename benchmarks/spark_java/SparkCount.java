import java.nio.ByteBuffer;
import java.util.Random;
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

    /** Returns key and count of each key of a micro-batch; frame: the keys of its records; padding: see PaddedCounter. */
    public static Dataset<Row> count(Dataset<Row> frame, int padding) {
        return frame.as(Encoders.STRING())
            .groupByKey((MapFunction<String, String>) key -> key, Encoders.STRING())
            .transformWithState(
                padding == 0 ? new Counter() : new PaddedCounter(padding), TimeMode.None(), OutputMode.Update(), Encoders.tuple(Encoders.STRING(), Encoders.BINARY()))
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

    /** Keeps one count for each key, and random bytes beside it. */
    public static final class PaddedCounter extends StatefulProcessor<String, String, Tuple2<String, byte[]>> {
        private final int padding;
        private transient ValueState<byte[]> row;

        PaddedCounter(int padding) {
            this.padding = padding;
        }

        @Override
        public void init(OutputMode outputMode, TimeMode timeMode) {
            row = getHandle().getValueState("row", Encoders.BINARY(), TTLConfig.NONE());
        }

        @Override
        public Iterator<Tuple2<String, byte[]>> handleInputRows(String key, Iterator<String> rows, TimerValues timers) {
            byte[] kept = row.exists() ? row.get() : null;
            if (kept == null) {
                kept = new byte[Long.BYTES + padding];
                new Random(key.hashCode()).nextBytes(kept);
                ByteBuffer.wrap(kept).putLong(0);
            }
            long counted = ByteBuffer.wrap(kept).getLong() + rows.size();
            ByteBuffer.wrap(kept).putLong(counted);
            row.update(kept);
            byte[] value = ByteBuffer.allocate(Long.BYTES).putLong(counted).array();
            return scala.collection.Iterator$.MODULE$.single(new Tuple2<>(key, value));
        }
    }
}
