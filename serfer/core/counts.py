"""What a query asked of its store, counted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Bytes moved and operations that succeeded: `gets` counts ranges read, `exists` keys asked for."""

    bytes_put: int = 0
    bytes_get: int = 0
    puts: int = 0
    gets: int = 0
    exists: int = 0

    def __add__(self, other: "StoreCounts") -> "StoreCounts":
        return StoreCounts(
            self.bytes_put + other.bytes_put,
            self.bytes_get + other.bytes_get,
            self.puts + other.puts,
            self.gets + other.gets,
            self.exists + other.exists,
        )

    def __sub__(self, other: "StoreCounts") -> "StoreCounts":
        return StoreCounts(
            self.bytes_put - other.bytes_put,
            self.bytes_get - other.bytes_get,
            self.puts - other.puts,
            self.gets - other.gets,
            self.exists - other.exists,
        )
