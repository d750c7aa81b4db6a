"""The picture of the surface: for each network, objective and share of cold queries, who wins by image and burst."""
