"""The commands that train what decides."""
