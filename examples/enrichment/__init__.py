"""Orders that get their price from an HTTP service and their risk from an ONNX model."""
