"""What the commands share: options, the plan they mean, how they print, and how the program ends."""
