"""The state of tasks: stores in RocksDB or in memory, the record cache, change-logging, the state directory."""

if __name__ != "penstock.statestore":
    raise ImportError("import penstock.statestore, not statestore: run `pip install -e .` first")
