"""The files of a plan directory: ONNX graphs and weights, written and checked against the whole network."""
