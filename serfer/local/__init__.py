"""AWS's parts on one machine: the local Lambda service and the embedded store."""
