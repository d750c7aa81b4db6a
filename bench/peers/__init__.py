"""`serfer serve` beside other ways to serve the same ONNX file: the servers, their environments, and their load."""
