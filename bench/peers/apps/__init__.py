"""The peers' programs, which run in environments of their own: nothing here imports SerFer."""
