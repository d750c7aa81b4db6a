from functools import cache

import pytest

from tests.exports import for_any_size


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Return what exports what a factory makes, once, for images of any size: the module and its file."""

    @cache
    def export(make):
        net = make().eval()
        return net, for_any_size(net, tmp_path_factory.mktemp("network") / "net.onnx")

    return export
