"""Generated and public loads."""
