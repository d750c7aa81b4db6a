"""POST /v1/predict: what any network finds in images."""

import base64
import io
import json

import httpx
import pytest
from PIL import Image

import serfer
from serfer.core.detections import coco
from serfer.core.errors import RequestRefusedError
from tests.e2e.dense import OUTPUTS, split_dense
from tests.e2e.detector import CLASSES, split_detector
from tests.support.served import PATIENCE, ended, png, served

DRAWN = ("classes", "head/depth", "embedding")
PIXELS = png(70, 50)


def turned():
    """Return the picture as a JPEG whose metadata say that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.open(io.BytesIO(PIXELS)).save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def plans(tmp_path_factory, small_plan):
    folder = tmp_path_factory.mktemp("plans")
    return {
        "small": small_plan,
        "boxes": split_detector(folder / "boxes"),
        "maps": split_dense(folder / "maps", tuple(OUTPUTS)),
        "drawn": split_dense(folder / "drawn", DRAWN),
        "embedding": split_dense(folder / "embedding", ("embedding",)),
        "arrays": split_dense(folder / "arrays", ("embedding",), preprocess=None),
    }


@pytest.fixture(scope="module")
def found(plans):
    pictures, names = [PIXELS, turned()], ["a.png", "b.jpg"]
    images = {}
    for name in KINDS:
        with serfer.open(plans[name], workers="inprocess") as pipeline:
            images[name] = pipeline.predict(pictures, names=names)
    return images


@pytest.fixture(scope="module")
def url(plans, forks, tmp_path_factory):
    with served(plans, forks=forks, results=tmp_path_factory.mktemp("results").as_uri()) as url:
        yield url


def ask(http, model, query="", **more):
    files = [("image", ("a.png", PIXELS)), ("image", ("b.jpg", turned()))]
    return http.post(f"/v1/predict?model={model}{query}", files=files, **more)


def plain(images, kind):
    return json.loads(json.dumps([image.as_dict(kind) for image in images]))


KINDS = {"small": "classes", "boxes": "boxes", "drawn": "map", "embedding": "vector"}


@pytest.mark.parametrize(("model", "kind"), KINDS.items())
def test_the_answer_is_the_pipelines_own(http, found, model, kind):
    answer = ask(http, model).json()
    assert (answer["kind"], answer["images"]) == (kind, plain(found[model], kind))
    assert [(image["height"], image["width"]) for image in answer["images"]] == [(50, 70), (70, 50)]
    assert answer["latency_ms"] > 0
    assert [stage["tasks"] for stage in answer["stages"]]


def test_masks_are_pictures_and_vectors_are_values(http):
    [image, _] = ask(http, "drawn").json()["images"]
    assert [output["name"] for output in image["outputs"]] == [*DRAWN]
    mask, depth, vector = image["outputs"]
    assert Image.open(io.BytesIO(base64.b64decode(mask["png"]))).size == (34, 34)
    assert Image.open(io.BytesIO(base64.b64decode(depth["png"]))).mode.startswith("I")
    assert len(vector["values"]) == 5


def test_maps_that_an_answer_cannot_have_are_kept(http):
    answer = ask(http, "maps").json()
    assert answer["kind"] == "map"
    first, second = answer["images"]
    assert (first["name"], second["height"]) == ("a.png", 70)
    assert first["outputs"] == second["outputs"]
    assert [(output["name"], output["type"], output["shape"]) for output in first["outputs"]] == [
        (name, kind, [*dims]) for name, (kind, dims) in OUTPUTS.items()
    ]
    array = http.get(f"{first['outputs'][0]['href']}/zarr.json").json()
    assert array["shape"] == [2, *OUTPUTS["scores"][1]]


def test_maps_are_refused_where_nothing_is_kept(plans, forks):
    with served({"maps": plans["maps"]}, forks=forks) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        refused = ask(http, "maps")
    assert refused.status_code == 422
    for words in ("[5, 34, 34] float32", "of several channels", "--results", "/v2/models/maps/infer", "reduce=argmax"):
        assert words in refused.json()["detail"]


def test_boxes_as_a_coco_data_set_and_by_a_score_in_place_of_the_plans(http, found):
    wanted = coco(found["boxes"], CLASSES)
    value = ask(http, "boxes", "&format=coco").json()
    assert [image["file_name"] for image in value["images"]] == ["a.png", "b.jpg"]
    assert [category["name"] for category in value["categories"]] == [*CLASSES]
    assert [annotation["bbox"] for annotation in value["annotations"]] == [[*box.bbox] for box in wanted.annotations]
    few = ask(http, "boxes", "&min_score=0.9").json()["images"]
    for image, all_of_it in zip(few, found["boxes"], strict=True):
        assert [box["score"] for box in image["boxes"]] == [box.score for box in all_of_it.boxes if box.score >= 0.9]


def test_one_key_has_one_answer_and_other_thresholds_are_another_request(http):
    headers = {"Idempotency-Key": "k"}
    first, again = (ask(http, "boxes", headers=headers) for _ in range(2))
    assert (again.headers["Idempotent-Replayed"], again.json()) == ("true", first.json())
    assert ask(http, "boxes", "&min_score=0.9", headers=headers).status_code == 422


def test_later(http, found):
    begun = ask(http, "boxes", headers={"Prefer": "respond-async"})
    assert begun.status_code == 202
    state = ended(http, begun)
    assert (state["status"], state["result"]["kind"]) == ("done", "boxes")
    assert state["result"]["images"] == plain(found["boxes"], "boxes")


@pytest.mark.parametrize(
    ("path", "headers", "data", "status", "words"),
    [
        ("predict?model=small&format=coco", {}, PIXELS, 422, "small gives no boxes"),
        ("predict?model=boxes&format=coco", {"Prefer": "respond-async"}, PIXELS, 422, "leave Prefer out"),
        ("predict?model=boxes&format=voc", {}, PIXELS, 422, "format"),
        ("predict?model=boxes&min_score=1.5", {}, PIXELS, 422, "min_score"),
        ("predict?model=embedding&min_score=0.5", {}, PIXELS, 422, "min_score"),
        ("predict?model=embedding&top_k=5", {}, PIXELS, 422, "top_k is for classes"),
        ("predict?model=boxes&top_k=3", {}, PIXELS, 422, "top_k is for classes"),
        ("predict?model=boxes&iou=0.5", {}, PIXELS, 422, "'iou' is not a parameter"),
        ("predict?model=arrays", {}, PIXELS, 422, "preprocess"),
        ("predict?model=boxes", {}, PIXELS[:100], 400, "a.png"),
        ("classify?model=boxes", {}, PIXELS, 422, "POST /v1/predict"),
    ],
)
def test_what_is_refused(http, path, headers, data, status, words):
    refused = http.post(f"/v1/{path}", headers=headers, files={"image": ("a.png", data)})
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
    assert words in refused.json()["detail"]


async def test_both_clients_get_the_pipelines_answer(url, found):
    pictures, names = [PIXELS, turned()], ["a.png", "b.jpg"]
    with serfer.Client(url, timeout_s=PATIENCE) as client:
        for model, kind in KINDS.items():
            report = client.predict(pictures, names=names, model=model)
            assert (report.kind, report.images) == (kind, tuple(found[model]))
        assert {model.name: model.kind for model in client.models()}["boxes"] == "boxes"
        with pytest.raises(RequestRefusedError, match="min_score"):
            client.predict(PIXELS, model="boxes", min_score=2.0)
    async with serfer.AsyncClient(url, timeout_s=PATIENCE) as client:
        report = await client.predict(pictures, names=names, model="boxes", min_score=0.9, explain=True)
    assert report.timeline.tasks
    assert all(box.score >= 0.9 for image in report.images for box in image.boxes)
