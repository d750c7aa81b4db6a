import asyncio
import base64
import itertools
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

import serfer
from serfer.api.service import ServiceQuery
from tests.e2e.small import CLASSES, SIZE
from tests.support.served import ended, png


def answer(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()


def problem(reply, status):
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")
    document = reply.json()
    assert document["status"] == status
    return document["detail"]


@pytest.fixture(scope="module")
def expected(small_plan):
    with serfer.open(small_plan, workers="inprocess") as pipeline:
        pipeline.classify([png()], names=["cat.png"], top_k=3)
        return json.loads(json.dumps(pipeline.last_report.as_dict()))


def held(monkeypatch, pipeline):
    """Have a pipeline's queries wait for the event that is returned."""
    may_run, run = threading.Event(), pipeline.answer

    async def later(*given, **more):
        await asyncio.to_thread(may_run.wait, 60)
        return await run(*given, **more)

    monkeypatch.setattr(pipeline, "answer", later)
    return may_run


class TestAnswers:
    def test_a_form_gets_the_pipelines_own_answer(self, http, expected):
        response = answer(http.post("/v1/classify?top_k=3", files={"image": ("cat.png", png())}))
        assert list(response) == list(expected)
        for field in ("model", "weights", "untrained", "images", "plan", "target", "retries", "hedges", "restarts"):
            assert response[field] == expected[field]
        assert [stage["tasks"] for stage in response["stages"]] == [4, 4, 1]
        assert response["latency_ms"] > 0

    def test_a_raw_image_and_json_get_the_same_predictions(self, http, expected):
        raw = answer(http.post("/v1/classify?top_k=3", content=png(), headers={"Content-Type": "image/png"}))
        data = base64.b64encode(png()).decode()
        response = answer(http.post("/v1/classify?top_k=3", json={"images": [{"data": data, "name": "x"}]}))
        predictions = expected["images"][0]["predictions"]
        assert raw["images"] == [{"name": "image 0", "predictions": predictions}]
        assert response["images"] == [{"name": "x", "predictions": predictions}]

    def test_several_images_are_one_query_and_more_classes_than_there_are_mean_all(self, http, observed):
        files = [("image", (f"{seed}.png", png(seed=seed))) for seed in range(3)]
        response = answer(http.post(f"/v1/classify?top_k={CLASSES + 1}", files=files))
        assert [image["name"] for image in response["images"]] == ["0.png", "1.png", "2.png"]
        assert [len(image["predictions"]) for image in response["images"]] == [CLASSES] * 3
        assert len(observed.answers) == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("query", "status", "detail"),
        [
            ("model=other", 404, "no model 'other' here: there is small"),
            ("top_k=0", 422, "top_k: Input should be greater than or equal to 1"),
            ("top_k=65537", 422, "top_k: Input should be less than or equal to 65536"),
            ("deadline_ms=99999999999", 422, "deadline_ms: Input should be less than or equal to 86340000"),
            ("application=cats", 422, "no applications"),
            ("latency_ms=200", 422, "no applications"),
            ("model=small&application=cats", 422, "not both"),
        ],
    )
    def test_wrong_parameters_are_named(self, lasting_http, query, status, detail):
        assert detail in problem(lasting_http.post(f"/v1/classify?{query}", files={"image": png()}), status)

    def test_a_late_answer_is_a_deadline_problem_and_not_counted(self, http, observed):
        problem(http.post("/v1/classify?deadline_ms=1", files={"image": png()}), 504)
        assert not observed.answers

    def test_a_wall_clock_that_jumps_changes_no_deadline(self, http, monkeypatch):
        jumps, now = itertools.cycle((-86_400.0, 86_400.0)), time.time
        monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
        assert http.post("/v1/classify", files={"image": png()}).status_code == 200

    @pytest.mark.parametrize("path", ["/v1/classify?deadline_ms=20000", "/v2/models/small/infer"])
    def test_an_answer_that_is_ready_after_the_deadline_is_a_504(self, http, service, monkeypatch, path):
        """By the service's own clock: the deadline passes between the query's end and the answer's head."""
        usual_left, usual_noted, answered = ServiceQuery.remaining_s, service._observer.answered, []

        def left_s(query, doing):
            return usual_left(replace(query, deadline=0.0) if answered else query, doing)

        monkeypatch.setattr(service._observer, "answered", lambda *noted: answered.append(usual_noted(*noted)))
        monkeypatch.setattr(ServiceQuery, "remaining_s", left_s)
        pixels = [0] * (SIZE * SIZE * 3)
        body = {"inputs": [{"name": "image", "shape": [1, SIZE, SIZE, 3], "datatype": "UINT8", "data": pixels}]}
        reply = http.post(path, **({"json": body} if "v2" in path else {"files": {"image": png()}}))
        assert (reply.status_code, len(answered)) == (504, 1)
        assert "no answer by the deadline" in reply.text

    def test_the_deadline_counts_from_the_request_s_head_and_covers_its_body(self, url):
        """Half a body, and nothing more: the answer comes when the deadline has passed, not the body's own limit."""
        with closing(socket.create_connection(urlsplit(url).netloc.split(":"))) as connection:
            head = (
                "POST /v1/classify?deadline_ms=50 HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 999"
            )
            connection.sendall(f"{head}\r\n\r\nhalf".encode())
            reply = connection.makefile("rb").read()
        assert reply.startswith(b"HTTP/1.1 504")
        assert b"no answer by the deadline" in reply


class TestResults:
    @pytest.mark.hostile
    @pytest.mark.parametrize("key", ["", "a b", "x" * 256])
    def test_malformed_keys_are_refused(self, lasting_http, key):
        reply = lasting_http.post("/v1/classify", files={"image": png()}, headers={"Idempotency-Key": key})
        assert "Idempotency-Key should be" in problem(reply, 422)

    def later(self, http, **headers):
        reply = http.post("/v1/classify", files={"image": ("a", png())}, headers={"Prefer": "respond-async", **headers})
        assert reply.status_code == 202, reply.text
        assert reply.headers["location"] == f"/v1/results/{reply.json()['id']}"
        return reply

    def test_a_key_is_the_same_key_now_and_later_and_never_another_requests(self, http, observed):
        later, now = {"Idempotency-Key": "later"}, {"Idempotency-Key": "now"}
        first = self.later(http, **later)
        result = ended(http, first)["result"]
        second = self.later(http, **later)
        assert (second.json()["status"], second.headers["location"]) == ("done", first.headers["location"])
        assert answer(http.post("/v1/classify", files={"image": ("a", png())}, headers=later)) == result
        assert len(observed.answers) == 1
        answered = answer(http.post("/v1/classify", files={"image": ("a", png())}, headers=now))
        assert ended(http, self.later(http, **now))["result"] == answered
        for prefer in ({}, {"Prefer": "respond-async"}):
            other = {"files": {"image": ("a", png(seed=1))}, "headers": {**now, **prefer}}
            assert "came with another request" in problem(http.post("/v1/classify", **other), 422)
        assert len(observed.answers) == 2

    def test_pending_results_count_towards_the_memory_limit(self, http, service, monkeypatch):
        """As long as its query waits; whoever sends more is told so, and room comes back when it ends."""
        may_end = held(monkeypatch, service.pipelines["small"])
        http.get("/healthz")
        budget = service.admission.bytes
        before = budget.held
        reply = self.later(http)
        assert budget.held - before > len(png())
        budget.most = budget.held
        assert "hold all the memory" in problem(http.post("/v1/classify", files={"image": ("a", png())}), 429)
        may_end.set()
        ended(http, reply)
        while budget.held > before:
            pass

    def test_accepted_jobs_are_answered_and_further_ones_refused(self, http, service, monkeypatch):
        may_begin = held(monkeypatch, service.pipelines["small"])
        headers = {"Prefer": "respond-async"}
        with ThreadPoolExecutor(20) as threads:
            sent = [
                threads.submit(http.post, "/v1/classify", files={"image": png()}, headers=headers) for _ in "." * 20
            ]
            replies = [one.result() for one in sent]
        assert sorted(reply.status_code for reply in replies) == [202] * 12 + [429] * 8  # four run, eight wait
        may_begin.set()
        ends = [ended(http, reply)["status"] for reply in replies if reply.status_code == 202]
        assert ends == ["done"] * 12
        while service.admission.queries.count:
            pass
