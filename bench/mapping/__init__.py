"""`serfer map` as users run it, on a large generated image: exactness, memory, time, and kills."""
