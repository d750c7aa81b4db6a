"""Scenario files of tests: a row of numbers for Lambda, and one for each instance type."""

LAMBDA = ("usd_per_query", "latency_ms", "cold_ms", "concurrency", "memory_gb", "keep_alive_s")
INSTANCE = ("name", "usd_per_hour", "spot_usd_per_hour", "boot_s", "min_billing_s", "qps", "batches")


def instance_text(name, *values, extra=""):
    return "\n".join(["[[instance]]", *_rows(INSTANCE, (f'"{name}"', *values)), extra, ""])


def scenario_text(slo_ms, serverless, *instances):
    """Return a scenario's TOML; the values are those of LAMBDA and INSTANCE, in their order."""
    head = [f"slo_ms = {slo_ms}", "[lambda]", *_rows(LAMBDA, serverless), ""]
    return "\n".join(head) + "".join(instance_text(*values) for values in instances)


def _rows(keys, values):
    return [f"{key} = {value}" for key, value in zip(keys, values, strict=True)]
