"""A network that is handed in over HTTP to a service without any: registered by a process, and then asked."""

import signal

import onnx
import pytest

import serfer
from serfer.registry import open_registry
from tests.e2e.conftest import PATIENCE, eventually
from tests.e2e.detector import CLASSES, detector_onnx
from tests.variants.digits import LABELS, write_digits


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits"), ("small",), images=30)


@pytest.fixture
def serve(start, tmp_path):
    """Start a driver that registers networks, in a registry that does not exist yet."""

    clients = []

    def begin():
        command = start(
            *("serve", "--registry", str(tmp_path / "registry"), "--register", "--open-registry"),
            *("--workers", "inprocess"),
            *("--store", "memory://", "--port", "0", "--json", "--drain-s", "0", "--log-level", "warning"),
        )
        clients.append(serfer.Client(command.said()["url"], timeout_s=PATIENCE))
        return command, clients[-1]

    yield begin
    for client in clients:
        client.close()


@pytest.mark.killed
@pytest.mark.slow
def test_a_network_is_registered_over_http_through_a_kill_and_answers_queries(serve, files, tmp_path):
    def hand_in(client, validation=files.validation):
        described = {"preprocess": files.preprocess, "labels": files.labels, "output": "softmax", "most": 2}
        return client.register(files.networks["small"], "digits", validation, **described)

    command, client = serve()
    job = hand_in(client)
    eventually(lambda: len(job.status().steps) > 1, "a step is done", every=0.05)
    command.interrupt(signal.SIGKILL)
    command.process.communicate()
    eventually(lambda: command.processes() == [], "its processes are gone", every=0.05)

    command, client = serve()
    assert not open_registry(str(tmp_path / "registry")).applications()
    again = hand_in(client)
    assert again.id == job.id
    done = again.result(PATIENCE)
    assert (done.version, done.live, done.ended) == (1, True, True)
    eventually(lambda: _served(client), "the driver serves it", every=0.1)
    image = next((files.validation / "seven").iterdir())
    report = client.classify(image, application="digits")
    assert report.images[0].predictions[0].label in LABELS
    assert report.selected.network == "small"

    with pytest.raises(serfer.RequestRefusedError, match="labels names 2 classes, application digits has 10"):
        client.register(files.networks["small"], "digits", files.validation, labels=_two(tmp_path))
    wrong = tmp_path / "wrong" / "eleven"
    wrong.mkdir(parents=True)
    (wrong / "a.png").write_bytes(image.read_bytes())
    with pytest.raises(serfer.RequestRefusedError, match="labels that the network does not know, 'eleven'"):
        hand_in(client, wrong.parent).result(PATIENCE)
    command.interrupt(signal.SIGTERM)
    assert command.end().code == 0


@pytest.mark.slow
def test_a_detector_is_registered_over_http_without_images(serve, tmp_path, examples):
    onnx.save(detector_onnx(), tmp_path / "detector.onnx")
    (tmp_path / "labels.txt").write_text("\n".join(CLASSES))
    _, client = serve()
    job = client.register(tmp_path / "detector.onnx", "found", labels=tmp_path / "labels.txt", output="boxes", most=2)
    assert job.result(PATIENCE).live
    eventually(lambda: _served(client, "found"), "the driver serves it", every=0.1)
    report = client.predict(examples / "rocket.jpg", application="found")
    assert (report.kind, report.selected.network) == ("boxes", "detector")
    assert {box.label for box in report.images[0].boxes} <= {*CLASSES}
    assert report.images[0].boxes
    failed = client.register(tmp_path / "detector.onnx", "other", size="9x9")
    with pytest.raises(serfer.RequestRefusedError) as caught:
        failed.result(PATIENCE)
    assert str(tmp_path) not in str(caught.value)


def _served(client, application="digits"):
    try:
        return client.classify(b"", application=application)
    except serfer.RequestRefusedError as refused:
        return refused.status != 404


def _two(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("zero\none\n")
    return path
