"""Tasks on Spark's executors: operators over Spark's state, records in and out."""
