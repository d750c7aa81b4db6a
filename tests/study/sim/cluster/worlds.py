"""A small cluster for the simulator's tests."""

TOML = """
[cluster]
core_gflops = 64.0
gpu_gflops = 14200.0
usd_per_core_hour = 0.034
usd_per_gpu_hour = 2.5
batches = [1, 2, 4, 8]
cores = [1, 2, 4]
shares = [0, 10, 20, 50]

[[servers]]
count = 4
cores = 16
gpus = 2
usd_per_hour = 5.5

[[profiles]]
name = "resnet-50"
[[profiles.operators]]
name = "network"
cpu = { batch_ms = 61.0, image_ms = 15.0, core_ms = 145.0 }
gpu = { batch_ms = 40.0, image_ms = 6.8, core_ms = 5.4, gpu_ms = 0.6 }

[[profiles]]
name = "two branches"
graph = [[["stem"]], [["left"], ["right", "right"]]]
[[profiles.operators]]
name = "stem"
cpu = { batch_ms = 1.0, image_ms = 0.1 }
[[profiles.operators]]
name = "left"
cpu = { batch_ms = 1.5 }
[[profiles.operators]]
name = "right"
cpu = { batch_ms = 0.5, image_ms = 0.05 }

[[functions]]
name = "vehicles"
profile = "resnet-50"
slo_ms = 200
cold_ms = 2000
load = "diurnal:mean=40,hours=0.2,peak_hour=0.1,row_s=5"

[[functions]]
name = "answers"
profile = "two branches"
slo_ms = 50
cold_ms = 1000
load = "poisson:rate=100,hours=0.1"
factor = 2.0

[policy]
exec_error = 0.1
"""
