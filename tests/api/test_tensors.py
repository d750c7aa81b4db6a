"""The codec, against what Triton's own client writes and reads."""

import json
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError
from starlette.datastructures import Headers
from tritonclient.http import InferenceServerClient, InferRequestedOutput, InferResult

from serfer.api.http.body import CODINGS, accepted, coding_of, compress, decompress
from serfer.api.http.inference_models import InferenceRequest, RequestParameters
from serfer.api.http.problems import Problem
from serfer.api.http.tensors import Inference, Signature, TensorForm, WantedOutput, decode_request, encode_answer
from serfer.core.errors import NotFiniteError
from tests.support.tensors import triton_input

MOST = 3
INPUT = TensorForm("input", "FP32", (2, 3, 4))
IMAGE = TensorForm("image", "UINT8", (3, 4, 2))
LOGITS = TensorForm("logits", "FP32", (5,))
SIGNATURE = Signature((INPUT, IMAGE), (LOGITS,), MOST)
LOGITS_WANTED = {"name": "logits"}
NAMED = {"model_name": "small", "model_version": "1"}
LABELS = ("a", "b:c", "ü", "d", "e")
FLOATS = {"dtype": np.float32, "shape": st.integers(1, MOST).map(lambda count: (count, 2, 3, 4))}
NUMPY_TYPES = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4", "UINT8": "u1", "BOOL": "?"}
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def written(array, name, *, binary=True, outputs=None, **more):
    """Return the body that Triton's client makes of an array, and the length of its JSON."""
    return InferenceServerClient.generate_request_body(
        triton_input(array, name, binary=binary), outputs=outputs, **more
    )


def read(body, header):
    return InferResult.from_response_body(body, header_length=header)


def request(**changes):
    """Return a request of one image of zeros, in JSON; a change of None leaves a member of its tensor out."""
    tensor = {"name": "input", "shape": [1, 2, 3, 4], "datatype": "FP32", "data": [0] * 24}
    tensor = {name: value for name, value in {**tensor, **changes}.items() if value is not None}
    return {"inputs": [tensor]}


def pixels(last):
    """Return a request of one image of 8-bit pixels, of which the last has this value."""
    return request(name="image", datatype="UINT8", shape=[1, 3, 4, 2], data=[*[0] * 23, last])


def logits_request(**parameters):
    return request() | {"outputs": [LOGITS_WANTED | {"parameters": parameters}]}


def decoded(**members):
    """Decode a request of one image of zeros with these members beside its tensor."""
    return decode_request(json.dumps(request() | members).encode(), None, SIGNATURE)


def refusal(document, header=None, signature=SIGNATURE):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(Problem) as caught:
        decode_request(body, header, signature)
    assert caught.value.status == 400
    assert "\n" not in caught.value.detail
    assert len(caught.value.detail) < 400
    return caught.value.detail


def outputs_request(**changes):
    form = {"binary": True, "classes": 0}
    wanted = (WantedOutput(LOGITS, **{name: changes.pop(name, value) for name, value in form.items()}),)
    plain = {"id": None, "form": INPUT, "array": None, "wanted": wanted, "parameters": RequestParameters()}
    return Inference(**{**plain, **changes})


class TestRequests:
    @given(arrays.arrays(**FLOATS, elements=FINITE), st.booleans(), st.text(st.characters(codec="ascii"), max_size=20))
    def test_every_bit_of_binary_floats_arrives(self, array, wanted, identifier):
        outputs = None if wanted else [InferRequestedOutput("logits", binary_data=False)]
        decoded = decode_request(*written(array, "input", outputs=outputs, request_id=identifier), SIGNATURE)
        assert decoded.array.tobytes() == array.tobytes()
        assert (decoded.array.shape, decoded.array.dtype, decoded.form) == (array.shape, np.float32, INPUT)
        assert (decoded.wanted, decoded.id) == ((WantedOutput(LOGITS, wanted),), identifier or None)

    @given(arrays.arrays(**FLOATS, elements=FINITE), st.booleans())
    def test_every_finite_float_survives_json_flat_or_nested(self, array, nested):
        body, header = written(array, "input", binary=False)
        assert header is None
        if nested:
            body = json.dumps(request(shape=list(array.shape), data=array.tolist())).encode()
        decoded = decode_request(body, None, SIGNATURE)
        assert decoded.array.tolist() == array.tolist()
        assert decoded.array.dtype == np.float32

    @given(arrays.arrays(np.uint8, (2, 3, 4, 2)), st.booleans())
    def test_pixels_arrive_in_json_and_binary(self, array, binary):
        decoded = decode_request(*written(array, "image", binary=binary), SIGNATURE)
        assert decoded.array.tolist() == array.tolist()
        assert (decoded.array.dtype, decoded.form) == (np.uint8, IMAGE)

    def test_null_and_unknown_members_are_accepted_and_parameters_handed_on(self):
        assert decoded(model_name="small", id=None, parameters=None, outputs=None).id is None
        given = decoded(parameters={"deadline_ms": 5, "timeout": None, "own": "x", "flag": True}).parameters
        assert (given.deadline_ms, given.timeout) == (5, None)
        assert given.model_extra == {"own": "x", "flag": True}

    @pytest.mark.parametrize(
        ("everything", "own", "binary"), [(True, False, False), (True, None, True), (False, True, True)]
    )
    def test_an_outputs_own_wish_for_binary_data_counts_first(self, everything, own, binary):
        outputs = [{"name": "logits", "parameters": {} if own is None else {"binary_data": own}}]
        assert decoded(outputs=outputs, parameters={"binary_data_output": everything}).wanted[0].binary is binary

    def test_more_classes_than_there_are_mean_all(self):
        assert decoded(outputs=[{"name": "logits", "parameters": {"classification": 99}}]).wanted[0].classes == 5


class TestRefusals:
    @pytest.mark.parametrize(
        ("document", "words"),
        [
            (request(datatype="FP64"), ["'input'", "'FP64'", "FP32"]),
            (request(datatype="BYTES", data=["x"]), ["'input'", "'BYTES'", "FP32"]),
            (request(datatype=7), ["inputs[0].datatype", "string"]),
            (request(name="pixels"), ["'pixels'", "'input' or 'image'"]),
            (request(shape=[1, 3, 2, 4]), ["[1, 3, 2, 4]", "[-1, 2, 3, 4]"]),
            (request(shape=[1.0, 2, 3, 4]), ["inputs[0].shape[0]"]),
            (request(shape=None), ["inputs[0].shape"]),
            (request(shape=[0, 2, 3, 4]), ["0 images", "1 to 3"]),
            (request(shape=[4, 2, 3, 4]), ["4 images", "1 to 3"]),
            (request(shape=[10**4000, 2, 3, 4]), ["images", "1 to 3"]),
            (request(data=[0] * 23), ["data", "24 numbers"]),
            (request(data=[0] * 25), ["24 numbers"]),
            (request(data=None), ["24 numbers"]),
            (request(data=[[0] * 24]), ["nested as [1, 2, 3, 4]"]),
            (request(data=[[[[0] * 4] * 3, [[0] * 4, [0] * 4, [0] * 5]]]), ["nested"]),
            (request(data=[[[[0] * 4] * 3, [[0] * 4, [0] * 4, 0]]]), ["nested"]),
            (request(data=[*[0] * 23, "1"]), ["something else than FP32"]),
            (request(data=[*[0] * 23, True]), ["something else than FP32"]),
            (request(data=[*[0] * 23, 1e39]), ["FP32 cannot hold"]),
            (request(data=[*[0] * 23, 10**400]), ["FP32 cannot hold"]),
            (request(parameters={"binary_data_size": 96}), ["both"]),
            (request(parameters={"binary_data_size": 96}, data=None), ["no Inference-Header-Content-Length"]),
            (request(parameters={"binary_data_size": 10**4000}, data=None), ["binary_data_size"]),
            (request(parameters={"shared_memory_region": "r"}, data=None), ["shared_memory_region"]),
            (request(parameters={"deep": []}), ["'deep'"]),
            (request(**{"unknown\n": 1}), ["inputs[0]", "'unknown'"]),
            *((pixels(last=value), ["UINT8"]) for value in (256, -1, 1.0, True, 10**30)),
            (request() | {"inputs": []}, ["inputs", "1 item"]),
            (request() | {"inputs": [1]}, ["inputs[0]", "object"]),
            (request() | {"inputs": request()["inputs"] * 2}, ["inputs", "1 item"]),
            (request() | {"outputs": [LOGITS_WANTED] * 2}, ["outputs[1]", "'logits'", "twice"]),
            (request() | {"outputs": [LOGITS_WANTED] * 17}, ["outputs", "16 items"]),
            (request() | {"outputs": [{"name": "probabilities"}]}, ["'probabilities'", "'logits'"]),
            (request() | {"outputs": [LOGITS_WANTED | {"data": []}]}, ["outputs[0]", "'data'"]),
            (logits_request(binary_data=1), ["outputs[0].parameters.binary_data"]),
            (logits_request(classification=-1), ["parameters.classification"]),
            (logits_request(shared_memory_region="r"), ["shared_memory_region"]),
            (request() | {"parameters": {"binary_data_output": "yes"}}, ["parameters.binary_data_output"]),
            (request() | {"id": "x" * 5000}, ["id"]),
            (request() | {"inptus": []}, ["'inptus'"]),
        ],
    )
    def test_an_invalid_tensor_or_request_is_refused_by_name(self, document, words):
        message = refusal(document)
        for word in words:
            assert word in message

    @pytest.mark.parametrize("body", [b"", b"[", b"[]", b"1", b"null", b"\xff\xfe", b"[" * 500, b'{"id": NaN}', b"{}x"])
    def test_invalid_json_requests_are_refused(self, body):
        assert refusal(body)

    @pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_not_finite_are_refused(self, number):
        array = np.zeros((1, 2, 3, 4), np.float32)
        array[0, 1, 2, 3] = number
        assert "NaN or infinite" in refusal(*written(array, "input"))
        assert "JSON" in refusal(json.dumps(request(data=array.ravel().tolist())).encode())

    @pytest.mark.parametrize("junk", [b"[],", b"1,", b"{},"])
    def test_json_of_more_values_than_images_have_is_refused_before_it_is_decoded(self, junk):
        body = b'{"inputs": [' + junk * 3000 + b"0]}"
        assert "more values than 3 images need" in refusal(body)

    @pytest.mark.parametrize(
        "given",
        [
            {"inputs": [], **{f"x{number}": 0 for number in range(1000)}},
            {"inputs": [], "parameters": {f"x{number}": None for number in range(1000)}},
            {"inputs": [], "outputs": [1] * 1000},
            request(shape=["x"] * 1000),
        ],
    )
    def test_validation_stops_at_the_first_wrong_member(self, given):
        with pytest.raises(ValidationError) as caught:
            InferenceRequest.model_validate(given)
        assert caught.value.error_count() <= 2

    def test_images_nested_as_deep_as_can_be_are_not_too_many_values(self):
        signature = Signature((TensorForm("input", "FP32", (700, 1, 1)),), (LOGITS,), 16)
        plain = request(shape=[16, 700, 1, 1], data=np.zeros((16, 700, 1, 1)).tolist())
        assert decode_request(json.dumps(plain).encode(), None, signature).array.shape == (16, 700, 1, 1)

    @pytest.mark.parametrize(
        ("header", "tail", "words"),
        [
            (0, b"", "96 bytes"),
            (0, bytes(95), "95 bytes"),
            (0, bytes(97), "97 bytes"),
            (1, bytes(96), "JSON"),
            (-1, bytes(96), "JSON"),
            (96, bytes(96), "JSON"),
            (97, bytes(96), "Inference-Header-Content-Length"),
            (-1000, b"", "Inference-Header-Content-Length"),
        ],
    )
    def test_binary_data_of_another_length_is_refused(self, header, tail, words):
        head = json.dumps(request(data=None, parameters={"binary_data_size": 96})).encode()
        assert words in refusal(head + tail, len(head) + header)

    def test_a_size_that_lies_or_is_not_there_is_refused(self):
        head = json.dumps(request(data=None, parameters={"binary_data_size": 95})).encode()
        for size in (95, 96):
            assert "binary_data_size is 95" in refusal(head + bytes(size), len(head))
        head = json.dumps(request()).encode()
        assert "has no binary_data_size" in refusal(head + b"x", len(head))

    @given(st.binary(max_size=200), st.none() | st.integers(-5, 205))
    def test_any_bytes_are_decoded_or_refused(self, body, header):
        refusal(body, header)

    @given(st.data())
    def test_a_request_with_bytes_changed_is_decoded_or_refused(self, data):
        body, header = written(np.zeros((1, 2, 3, 4), np.float32), "input")
        changed = bytearray(body)
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
        with suppress(Problem):
            assert decode_request(bytes(changed), header, SIGNATURE).array.shape == (1, 2, 3, 4)


class TestAnswers:
    @given(arrays.arrays(np.float32, (2, 5)), st.none() | st.text(max_size=9))
    def test_every_bit_of_binary_logits_is_read_by_tritons_client(self, logits, identifier):
        result = read(*encode_answer(outputs_request(id=identifier), {"logits": logits}, NAMED, LABELS))
        assert result.as_numpy("logits").tobytes() == logits.tobytes()
        assert result.as_numpy("logits").shape == (2, 5)
        assert result.get_response().get("id") == identifier
        assert {name: result.get_response()[name] for name in NAMED} == NAMED

    @given(arrays.arrays(np.float32, (2, 5), elements=FINITE))
    def test_every_finite_logit_survives_json(self, logits):
        body, header = encode_answer(outputs_request(binary=False), {"logits": logits}, NAMED, LABELS)
        assert header is None
        assert read(body, header).as_numpy("logits").tolist() == logits.tolist()

    @pytest.mark.parametrize("number", [np.nan, np.inf])
    @pytest.mark.parametrize("form", [{"binary": False}, {"classes": 2, "binary": False}, {"classes": 2}])
    def test_logits_that_are_not_finite_are_neither_json_nor_classes(self, number, form):
        logits = np.array([[0, 1, number, 2, 3]], np.float32)
        with pytest.raises(NotFiniteError):
            encode_answer(outputs_request(**form), {"logits": logits}, NAMED, LABELS)

    @pytest.mark.parametrize("binary", [True, False])
    def test_classes_come_best_first_with_their_labels(self, binary):
        logits = np.array([[1, 5, 10, 4, -2], [0, 0, -1, 0.5, 0]], np.float32)
        output = read(*encode_answer(outputs_request(classes=2, binary=binary), {"logits": logits}, NAMED, LABELS))
        classes = output.as_numpy("logits")
        texts = [text.decode() if isinstance(text, bytes) else text for text in classes.ravel()]
        assert texts == ["10.000000:2:ü", "5.000000:1:b:c", "0.500000:3:d", "0.000000:0:a"]
        assert classes.shape == (2, 2)
        assert output.get_output("logits")["datatype"] == "BYTES"

    def test_classes_without_labels_have_their_index_alone(self):
        logits = np.array([[1, 5]], np.float32)
        body, _ = encode_answer(outputs_request(classes=1, binary=False), {"logits": logits}, NAMED, ())
        [output] = json.loads(body)["outputs"]
        assert output == {"name": "logits", "datatype": "BYTES", "shape": [1, 1], "data": ["5.000000:1"]}


class TestCodings:
    @given(st.binary(max_size=4000), st.sampled_from(sorted(CODINGS)))
    def test_compressed_bodies_are_decompressed(self, body, coding):
        assert decompress(compress(body, coding), coding, len(body)) == body

    @pytest.mark.hostile
    @pytest.mark.parametrize("coding", CODINGS)
    def test_a_bomb_is_refused_once_it_is_larger_than_accepted(self, coding):
        with pytest.raises(Problem, match="more than the 1,000 bytes") as caught:
            decompress(compress(bytes(1001), coding), coding, 1000)
        assert caught.value.status == 413

    @pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + b"x", lambda _: b"", lambda _: b"x"])
    @pytest.mark.parametrize("coding", CODINGS)
    def test_wrongly_compressed_bodies_are_refused(self, coding, spoil):
        with pytest.raises(Problem, match=coding) as caught:
            decompress(spoil(compress(b"some text", coding)), coding, 1000)
        assert caught.value.status == 400

    def test_deflate_is_the_zlib_format(self):
        assert decompress(zlib.compress(b"text"), "deflate", 9) == b"text"

    def test_the_coding_of_a_body_is_known_and_others_refused(self):
        for value, coding in (("gzip", "gzip"), ("Deflate", "deflate"), ("identity", None), ("", None)):
            assert coding_of(Headers({"content-encoding": value})) == coding
        for value in ("br", "gzip, gzip", "gzip, br", "x-gzip"):
            with pytest.raises(Problem) as caught:
                coding_of(Headers({"content-encoding": value}))
            refused = {"Accept-Encoding": "gzip, deflate, identity"}
            assert (caught.value.status, caught.value.headers) == (415, refused)

    @pytest.mark.parametrize(
        ("value", "coding"),
        [
            ("gzip", "gzip"),
            ("deflate", "deflate"),
            ("br, deflate;q=0.5, GZIP;q=0.1", "gzip"),
            ("gzip;q=0, deflate", "deflate"),
            ("gzip; q=0.000", None),
            ("identity", None),
            ("", None),
        ],
    )
    def test_answers_are_coded_as_the_client_accepts(self, value, coding):
        assert accepted(Headers({"accept-encoding": value}), 5000) == coding
        assert accepted(Headers({"accept-encoding": value}), 50) is None


class TestSeveralOutputs:
    FORMS = (
        TensorForm("scores", "FP32", (5, 2, 3)),
        TensorForm("classes", "INT64", (2, 3)),
        TensorForm("counts", "INT32", (2,)),
        TensorForm("mask", "UINT8", (2, 3)),
        TensorForm("is positive", "BOOL", (4,)),
    )
    SEVERAL = Signature((INPUT, IMAGE), FORMS, MOST)

    def outputs(self, count):
        random = np.random.default_rng(0)
        return {
            form.name: random.integers(0, 2, (count, *form.shape)).astype(NUMPY_TYPES[form.datatype])
            for form in self.FORMS
        }

    @given(st.permutations(range(5)), st.integers(0, 5), st.lists(st.booleans(), min_size=5, max_size=5))
    def test_those_asked_for_come_in_order_as_triton_reads_them(self, order, count, binary):
        asked = [self.FORMS[number] for number in order[:count]]
        requested = [InferRequestedOutput(form.name, binary_data=binary[number]) for number, form in enumerate(asked)]
        array, values = np.zeros((2, 2, 3, 4), np.float32), self.outputs(2)
        request = decode_request(*written(array, "input", outputs=requested or None), self.SEVERAL)
        result = read(*encode_answer(request, values, NAMED, ()))
        outputs = result.get_response()["outputs"]
        for form, output in zip(asked or self.FORMS, outputs, strict=True):
            assert (output["name"], output["datatype"]) == (form.name, form.datatype)
            assert result.as_numpy(form.name).dtype == values[form.name].dtype
            assert np.array_equal(result.as_numpy(form.name), values[form.name])

    def test_maps_have_no_classification(self):
        for name in ("scores", "classes", "counts"):
            document = request() | {"outputs": [{"name": name, "parameters": {"classification": 2}}]}
            assert "classification" in refusal(document, signature=self.SEVERAL)

    @pytest.mark.parametrize(("outputs", "most"), [(["mask"], 12), (["mask", "counts"], 28), (["scores"], 240)])
    def test_an_answer_above_the_bound_is_refused_before_it_is_computed(self, outputs, most):
        array = np.zeros((2, 2, 3, 4), np.float32)
        sent = written(array, "input", outputs=[InferRequestedOutput(name) for name in outputs])
        assert decode_request(*sent, Signature((INPUT,), self.FORMS, MOST, most)).wanted
        with pytest.raises(Problem, match=rf"{most:,} bytes.* {most - 1:,} are sent") as caught:
            decode_request(*sent, Signature((INPUT,), self.FORMS, MOST, most - 1))
        assert caught.value.status == 422

    @given(arrays.arrays(np.float32, (2, 5, 2, 3), elements=FINITE))
    def test_json_takes_no_more_bytes_than_the_bound_counts(self, scores):
        wanted = WantedOutput(self.FORMS[0], binary=False)
        body, _ = encode_answer(outputs_request(wanted=(wanted,)), {"scores": scores}, NAMED, ())
        assert len(body) <= wanted.most_bytes(2) + 200
