"""A plan that is ready to answer, and what its queries report."""
