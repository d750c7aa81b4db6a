import pytest
import torch


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Return what exports what a factory makes, once, for images of any size: the module and its file."""
    known = {}

    def export(make):
        if make not in known:
            net = make().eval()
            free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
            program = torch.onnx.export(
                net, (torch.zeros(1, 3, 64, 64),), dynamo=True, verbose=False, dynamic_shapes=(free,)
            )
            file = tmp_path_factory.mktemp("network") / "net.onnx"
            program.save(file)
            known[make] = net, file
        return known[make]

    return export
