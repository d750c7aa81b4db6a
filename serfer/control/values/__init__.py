"""Values learnt from a load's past: its history, what is seen in it, and the forests that decide, with numpy alone."""
