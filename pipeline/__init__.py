"""The same topology on Spark through PySpark."""

if __name__ != "penstock.pipeline":
    raise ImportError("import penstock.pipeline, not pipeline: run `pip install -e .` first")
