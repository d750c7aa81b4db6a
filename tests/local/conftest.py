import pytest

from serfer.local.lambda_.runtime import runtime_directory


@pytest.fixture(scope="session")
def runtime(tmp_path_factory):
    """AWS's runtime client, as workers import it."""
    return runtime_directory(tmp_path_factory.mktemp("runtime"))
