"""The application: spawns, watches, replaces and stops the stream-thread processes."""

if __name__ != "penstock.supervisor":
    raise ImportError("import penstock.supervisor, not supervisor: run `pip install -e .` first")
