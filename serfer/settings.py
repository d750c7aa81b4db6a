"""The only reader of the environment, workers apart: what an operator sets once, as SERFER_* variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from serfer.core.aws import AwsFacts, parse_aws, shipped_aws
from serfer.core.errors import InputError, UsageError
from serfer.core.profile import Profiles, parse_profiles, shipped_profiles
from serfer.images import ImageLimits

_MOST_BYTES = 4 * 1024 * 1024


class Settings(BaseSettings):
    """Settings with their defaults; every field `x` is set by the variable SERFER_X."""

    model_config = SettingsConfigDict(env_prefix="SERFER_", env_ignore_empty=True, frozen=True)

    cache_dir: Path = Field(default_factory=lambda: Path.home() / ".cache" / "serfer")
    aws_file: Path | None = None
    profiles_file: Path | None = None
    max_image_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    max_image_pixels: int = Field(default=100_000_000, gt=0)
    local_concurrency: int = Field(default=16, gt=0)
    local_port: int = Field(default=0, ge=0, le=65535)

    @field_validator("cache_dir", "aws_file", "profiles_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """Workers have working directories of their own, so a relative path must not reach them."""
        return path and path.expanduser().absolute()

    def image_limits(self) -> ImageLimits:
        """Return what an image may be."""
        return ImageLimits(self.max_image_bytes, self.max_image_pixels)

    def facts(self) -> AwsFacts:
        """Return AWS's prices and quotas, with the user's own where `aws_file` has them."""
        if self.aws_file is None:
            return shipped_aws()
        return parse_aws(_text("SERFER_AWS_FILE", self.aws_file), shipped_aws())

    def profiles(self, path: Path | None = None, safety: float = 0.0) -> Profiles:
        """Return the operator profiles of `path`, or else of `profiles_file`, or else the shipped ones.

        `safety` is a share that is added to every time. Raises InputError that names the file.
        """
        name, chosen = ("--profiles", path) if path else ("SERFER_PROFILES_FILE", self.profiles_file)
        if chosen is None:
            return shipped_profiles(safety)
        text = _text(name, chosen)
        try:
            return parse_profiles(text, safety)
        except InputError as error:
            raise InputError(f"{name}: {chosen}: {error}") from error


def _text(name: str, path: Path) -> str:
    """Read a file of settings; raises InputError that says which setting named it."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{name}: {path} has more than {_MOST_BYTES:,} bytes")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"{name}: {path} cannot be read: {reason}") from error


def load_settings() -> Settings:
    """Read the settings; raises UsageError that names the wrong variable."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"SERFER_{str(first['loc'][0]).upper()}: {first['msg']}") from error
