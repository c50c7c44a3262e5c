"""Tasks on Spark's executors: operators and stores over Spark's state, records in and out."""
