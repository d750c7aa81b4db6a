"""Systems under load, side by side: bursts and steady rates."""
