"""Ways to serve a load, side by side: functions of several kinds, instances, and both by a policy."""
