"""The plan for queries that find nothing warm: its search, and what it is compared with."""
