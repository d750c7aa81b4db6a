"""The template of a deployment: hand-written parts, and what is generated for a plan."""

from pathlib import Path


def text(name: str) -> str:
    return (Path(__file__).parent / "parts" / name).read_text(encoding="utf-8")
