"""`serfer map`: a network over images that no memory holds, window by window, each a query of a map plan.

    RasterSource ──▶ WindowInput ──▶ Pipeline.submit(window) ──▶ ResultParts ──▶ write_result
       read           normalised        in flight: N             any order       once all are there

`map.py` is the public function, `image_job.py` one image from its checks to its result, `engine.py` the windows in
flight; what decides (input, no_data, estimate, spending) is pure.
"""
