"""One stream thread: its loop and states, tasks and their registries, membership, assignment, restore."""

if __name__ != "penstock.workers":
    raise ImportError("import penstock.workers, not workers: run `pip install -e .` first")
