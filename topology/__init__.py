"""What a user declares: the DSL, the Processor API, serdes, the graph and its compiled form.

Pure: no client, no disk, no process.
"""

if __name__ != "penstock.topology":
    raise ImportError("import penstock.topology, not topology: run `pip install -e .` first")
