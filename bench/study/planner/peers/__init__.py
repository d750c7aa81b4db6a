"""Plans of published planners, by their own programs, against ours."""
