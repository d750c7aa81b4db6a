"""What runs inside Lambda: one function for each stage, configured by plan.json and its bootstrap."""
