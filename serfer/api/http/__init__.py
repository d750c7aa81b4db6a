"""HTTP below the routes: server, bounds of bodies, uploads, problems."""
