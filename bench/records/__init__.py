"""Records of results, and the tables of pages that are written from them."""
