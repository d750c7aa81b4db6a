"""What a deployment costs, item by item."""
