"""Applications that are served: of each query's objectives, a variant; of each variant, an open pipeline.

    registry ──releases──> tables ──┐                 ┌──> pipelines: opened when first selected, closed when retired
    queries ──> meters ──> states ──┴──> selection ───┤
    other drivers' meters ──┘                         └──> canary: judged each second, taken back if it is worse

What the registry said last holds while it cannot be reached.
"""
