"""What runs beside a pool's policy, in threads of its own: a recording, and what was learnt, kept."""
