"""Work that outlives its request: asynchronous queries, offline jobs and registrations, carried by one runner."""
