"""The planner against others, and its predictions against measurements."""
