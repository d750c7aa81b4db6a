"""What is kept of a policy: snapshots of what it has learnt, and recordings of what it saw and decided."""
