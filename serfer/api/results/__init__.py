"""Results that the service keeps for their owners: what is said of them, and how they are sent."""
