"""Work that outlives its request: asynchronous queries and offline jobs, carried by one runner."""
