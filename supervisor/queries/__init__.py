"""Questions to the stream threads: metrics, stores, snapshots."""
