raise ValueError("broken from the start")
