"""One function's warm state under windows, over traces of days."""
