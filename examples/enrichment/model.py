"""The model that scores orders: ``python -m examples.enrichment.model risk.onnx`` writes its ONNX file.

It is small and real: a hidden layer of fixed random features, and an output layer fitted to generated orders by least
squares. It has learned ``risk_of``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

#: The columns of its input, and how they are scaled.
FEATURES = ("price", "pieces", "age_days")
SCALES = np.array([1_000.0, 10.0, 365.0], np.float32)
HIDDEN = 256
SEED = 39
#: Versions of ONNX's operators and of its file format, which runtimes of the last years can read.
OPSET, IR_VERSION = 17, 8

Floats = NDArray[np.float32]


def risk_of(orders: Floats) -> Floats:
    """Return the function that the model learns: expensive orders of young customers are a risk, from 0 to 1."""
    price, pieces, age_days = (orders / SCALES).T
    risk: Floats = 1 / (1 + np.exp(-(2 * price * pieces - 3 * age_days - 1)))
    return risk


def made_orders(count: int, seed: int = SEED) -> Floats:
    """Return this many orders, one per row, with the columns FEATURES."""
    draw = np.random.default_rng(seed)
    columns = [draw.uniform(0, 3_000, count), draw.integers(1, 10, count), draw.uniform(0, 1_500, count)]
    return np.column_stack(columns).astype(np.float32)


def fit(orders: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the weights: of the hidden layer, its biases, of the output layer."""
    draw = np.random.default_rng(SEED)
    hidden = draw.normal(size=(len(FEATURES), HIDDEN)).astype(np.float32) / SCALES[:, None]
    biases = draw.normal(size=HIDDEN).astype(np.float32)
    features = np.tanh(orders @ hidden + biases)
    output, *_ = np.linalg.lstsq(features, risk_of(orders)[:, None], rcond=1e-5)
    return hidden, biases, output.astype(np.float32)


def build() -> onnx.ModelProto:
    """Return the model: "orders" (float32, any number of rows by FEATURES) to "risk" (one column)."""
    weights = dict(zip(("hidden", "biases", "output"), fit(made_orders(20_000)), strict=True))
    nodes = [
        helper.make_node("MatMul", ["orders", "hidden"], ["weighted"]),
        helper.make_node("Add", ["weighted", "biases"], ["biased"]),
        helper.make_node("Tanh", ["biased"], ["features"]),
        helper.make_node("MatMul", ["features", "output"], ["risk"]),
    ]
    graph = helper.make_graph(
        nodes,
        "risk",
        [helper.make_tensor_value_info("orders", TensorProto.FLOAT, ["rows", len(FEATURES)])],
        [helper.make_tensor_value_info("risk", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def load(file: Path) -> Any:
    """Return an onnxruntime session of the model in a file; it uses one thread: each stream thread has its own."""
    import onnxruntime  # type: ignore[import-untyped]  # where the model is used, not where it is made

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build().SerializeToString())
