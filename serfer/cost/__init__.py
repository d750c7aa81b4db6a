"""What a load costs, served in each of several ways: by functions, by instances, by both."""
