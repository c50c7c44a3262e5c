"""Kafka's clients: connections, the cluster, reading, writing. docs/clients.md explains them."""

if __name__ != "penstock.clients":
    raise ImportError("import penstock.clients, not clients: run `pip install -e .` first")
