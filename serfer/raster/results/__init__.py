"""Results: their parts as files, and what is put together from all of them."""
