"""What a query costs in the pipeline and in its parts."""
