"""Registrations over HTTP: what is uploaded goes to disk, is unpacked and registered by processes of their own."""
