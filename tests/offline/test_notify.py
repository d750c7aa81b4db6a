"""Those who are to be notified of a job's end are, signed and with one id; nothing else goes anywhere."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import MissingExtraError, UsageError
from serfer.local.server import free_port
from serfer.offline.notify.aws import AwsPlace, Queue, Topic
from serfer.offline.notify.delivery import PATIENT, Patience, deliver
from serfer.offline.notify.event import JobEvent, JobStatus, OfflineJob
from serfer.offline.notify.signature import signed_headers, signing_key
from serfer.offline.notify.target import Attempt
from serfer.offline.notify.targets import parse_targets
from tests.moto_server import ACCESS, REGION, MotoServer
from tests.offline.services import serving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - the specification's example
JOB = OfflineJob("map", "digest", ("a.tif", "b.tif"), "results", "run1")
EVENT = JobEvent(JOB, JobStatus.DONE, datetime(2026, 11, 25, 12, 0, 0, 5000, tzinfo=UTC), ("results/a.tif",), {"n": 1})


class Time:
    """A clock that sleeping moves on."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def deliver(self, *targets, patience=PATIENT):
        return deliver(EVENT, targets, patience, clock=lambda: self.now, sleep=self.sleep, draw=lambda: 0.5)


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def webhook(server):
    [target] = parse_targets([f"{server.url}/hooks/token?x=1"], SECRET)
    return target


class TestSignatures:
    def test_the_specifications_own_example(self):
        headers = signed_headers(
            signing_key(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
        )
        assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    @pytest.mark.parametrize("secret", ["", "secret", "whsec_", "whsec_AAAA", "whsec_%%%", "whsec_" + "A" * 400])
    def test_what_is_no_secret_is_refused_and_not_repeated(self, secret):
        with pytest.raises(ValueError, match="24 to 64 random bytes") as raised:
            signing_key(secret)
        assert not secret or len(secret) < 7 or secret not in str(raised.value)

    @given(st.binary(max_size=50), st.integers(0, 2**40))
    def test_each_byte_and_the_time_are_signed(self, body, timestamp):
        key = signing_key(SECRET)
        one = signed_headers(key, "msg_1", timestamp, body)["webhook-signature"]
        assert one != signed_headers(key, "msg_1", timestamp + 1, body)["webhook-signature"]
        assert one != signed_headers(key, "msg_1", timestamp, body + b" ")["webhook-signature"]
        assert one != signed_headers(key, "msg_2", timestamp, body)["webhook-signature"]


class TestEvents:
    def test_an_event_says_what_ended_and_how(self):
        event = json.loads(EVENT.body())
        assert (event["type"], event["timestamp"]) == ("serfer.job.done", "2026-11-25T12:00:00.005Z")
        data = event["data"]
        assert (data["command"], data["status"], data["outputs"], data["figures"]) == (
            *("map", "done"),
            ["results/a.tif"],
            {"n": 1},
        )

    def test_a_job_has_one_id_whenever_it_runs_and_each_run_one_message(self):
        again = OfflineJob("map", "digest", ["a.tif", "b.tif"], "results", "run2")
        other = OfflineJob("map", "digest", ["a.tif"], "results", "run1")
        assert JOB.id == again.id != other.id
        ids = {JobEvent(job, JobStatus.DONE, EVENT.ended).id for job in (JOB, again, other)}
        assert len(ids) == 3

    def test_however_much_a_job_made_its_event_is_small_enough_for_a_queue(self):
        names = [f"{'x' * 3000}{number}" for number in range(5000)]
        event = JobEvent(JOB, JobStatus.FAILED, EVENT.ended, names, {}, "e" * 100_000)
        data = json.loads(event.body())["data"]
        assert (len(data["outputs"]), data["outputs_left_out"]) == (100, 4900)
        assert len(event.body()) < 256 * 1024


class TestWebhooks:
    def test_the_receiver_can_check_what_it_got(self, server, webhook):
        [delivery] = deliver(EVENT, [webhook])
        assert (delivery.attempts, delivery.error) == (1, "")
        [request] = server.requests
        assert (request.method, request.path) == ("POST", "/hooks/token?x=1")
        assert request.headers["content-type"] == "application/json"
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        digest = hmac.new(base64.b64decode(SECRET[6:]), signed, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        assert json.loads(request.body)["data"]["status"] == "done"

    def test_it_is_sent_again_with_the_same_id_until_it_is_taken(self, server, webhook):
        server.replies = [(503, {}, b""), (429, {"Retry-After": "20"}, b""), (500, {}, b""), (204, {}, b"")]
        time = Time()
        [delivery] = time.deliver(webhook)
        assert (delivery.attempts, delivery.error) == (4, "")
        assert len({request.headers["webhook-id"] for request in server.requests}) == 1
        assert time.slept == [0.75, 22.25, 6.75]

    @pytest.mark.parametrize("status", [301, 307, 400, 404, 410])
    def test_what_another_attempt_does_not_change_is_not_tried_again(self, server, webhook, status):
        server.replies = [(status, {"Location": f"{server.url}/elsewhere"}, b"")]
        [delivery] = Time().deliver(webhook)
        assert (delivery.attempts, f"answers with {status}" in delivery.error) == (1, True)
        assert [request.path for request in server.requests] == ["/hooks/token?x=1"]

    def test_attempts_and_time_are_bounded(self, server, webhook):
        server.replies = [(503, {"Retry-After": "99999999"}, b"")]
        time = Time()
        assert time.deliver(webhook)[0].attempts == 2
        assert time.now <= PATIENT.seconds
        server.replies = [(503, {}, b"")]
        assert Time().deliver(webhook, patience=Patience(3, 1000))[0].attempts == 3

    def test_a_receiver_that_is_not_there_is_an_error_by_its_host(self):
        [target] = parse_targets([f"http://127.0.0.1:{free_port()}/token"], SECRET)
        [delivery] = Time().deliver(target)
        assert (delivery.attempts, delivery.error) == (5, "127.0.0.1 cannot be reached: ClientConnectorError")

    def test_nothing_of_a_webhook_shows_its_path_or_its_key(self, webhook):
        assert "token" not in f"{webhook}{webhook!r}{webhook.name}"
        assert SECRET[6:12] not in repr(webhook)
        assert str(signing_key(SECRET)) not in repr(webhook)


class TestTargets:
    @pytest.mark.parametrize(
        ("text", "target"),
        [
            ("sqs://jobs", Queue("jobs")),
            ("sqs://jobs.fifo?region=eu-west-1", Queue("jobs.fifo", None, AwsPlace("eu-west-1"))),
            ("sqs://jobs?endpoint=http://localhost:1", Queue("jobs", None, AwsPlace(None, "http://localhost:1"))),
            ("arn:aws:sqs:eu-west-1:123456789012:jobs", Queue("jobs", "123456789012", AwsPlace("eu-west-1"))),
            (
                "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs",
                Queue("jobs", "123456789012", AwsPlace("eu-west-1")),
            ),
            (
                "arn:aws-cn:sns:cn-north-1:123456789012:jobs",
                Topic("arn:aws-cn:sns:cn-north-1:123456789012:jobs", AwsPlace("cn-north-1")),
            ),
        ],
    )
    def test_queues_and_topics_by_every_name_that_they_have(self, text, target):
        assert parse_targets([text, text], "") == [target]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "takes https://URL"),
            ("ftp://host/x", "takes https://URL"),
            ("arn:aws:s3:::bucket", "takes https://URL"),
            ("http://example.com/token", "use https://"),
            ("https://user:token@example.com/", "with a user, a password"),
            ("https://", "a URL such as"),
            ("sqs://jobs?colour=red", "the options are"),
            ("sqs://jobs?endpoint=nowhere", "the options are"),
            ("arn:aws:sqs:eu-west-1:123456789012:no.queue", "not the name of a queue"),
        ],
    )
    def test_what_is_none_is_refused_without_its_secrets(self, text, words):
        with pytest.raises(UsageError, match="--notify") as raised:
            parse_targets([text], SECRET)
        assert words in str(raised.value)
        assert "token" not in str(raised.value)

    def test_a_webhook_without_a_secret_is_refused(self):
        with pytest.raises(UsageError, match="SERFER_WEBHOOK_SECRET"):
            parse_targets(["https://example.com/token"], "")

    def test_queues_without_boto3_are_refused_when_the_job_starts(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(MissingExtraError, match=r"pip install .*\[deploy\]"):
            parse_targets(["sqs://jobs"], "")

    def test_too_many_are_refused(self):
        with pytest.raises(UsageError, match="at most 16"):
            parse_targets(["sqs://jobs"] * 17, "")

    def test_one_target_that_fails_keeps_the_event_from_no_other(self, webhook):
        class Deaf:
            name = "deaf"

            def send(self, _event, _timeout_s):
                return Attempt("it is deaf")

        first, second = deliver(EVENT, [Deaf(), webhook])
        assert (first.error, second.error) == ("it is deaf", "")


@pytest.fixture(scope="class")
def moto():
    with MotoServer() as server:
        yield server


@pytest.fixture
def aws(moto, monkeypatch):
    for name, value in {**ACCESS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    return moto


def received(client, url):
    messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    return messages.get("Messages", [])


class TestAws:
    def test_a_queue_gets_the_event_by_its_arn_its_url_and_its_name(self, aws):
        with aws.client("sqs") as client:
            url = client.create_queue(QueueName="jobs")["QueueUrl"]
            given = (
                "sqs://jobs",
                f"arn:aws:sqs:{REGION}:123456789012:jobs",
                f"sqs://jobs?endpoint={aws.url}&region={REGION}",
            )
            assert {each.error for each in deliver(EVENT, parse_targets(given, ""))} == {""}
            messages = received(client, url)
        assert [json.loads(message["Body"]) for message in messages] == [json.loads(EVENT.body())] * 3
        assert messages[0]["MessageAttributes"]["webhook-id"]["StringValue"] == EVENT.id

    def test_a_fifo_queue_keeps_one_of_an_event_that_came_twice(self, aws):
        with aws.client("sqs") as client:
            url = client.create_queue(QueueName="jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
            for _ in range(2):
                [delivery] = deliver(EVENT, parse_targets(["sqs://jobs.fifo"], ""))
                assert delivery.error == ""
            assert len(received(client, url)) == 1

    def test_a_topics_subscribers_get_the_event(self, aws):
        with aws.client("sqs") as queues, aws.client("sns") as topics:
            url = queues.create_queue(QueueName="subscribed")["QueueUrl"]
            arn = topics.create_topic(Name="ended")["TopicArn"]
            topics.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=f"arn:aws:sqs:{REGION}:123456789012:subscribed")
            [delivery] = deliver(EVENT, parse_targets([arn], ""))
            assert (delivery.target, delivery.error) == (arn, "")
            [message] = received(queues, url)
        assert json.loads(json.loads(message["Body"])["Message"]) == json.loads(EVENT.body())

    @pytest.mark.usefixtures("aws")
    @pytest.mark.parametrize("text", ["sqs://nowhere", f"arn:aws:sns:{REGION}:123456789012:nowhere"])
    def test_a_place_that_does_not_exist_is_an_error_at_once(self, text):
        [delivery] = Time().deliver(*parse_targets([text], ""))
        assert (delivery.attempts, "AWS refuses it" in delivery.error) == (1, True)

    @pytest.mark.usefixtures("aws")
    def test_an_endpoint_that_does_not_answer_is_tried_again(self):
        [delivery] = Time().deliver(*parse_targets([f"sqs://jobs?endpoint=http://127.0.0.1:{free_port()}"], ""))
        assert (delivery.attempts, "connect" in delivery.error) == (5, True)

    @pytest.mark.usefixtures("aws")
    def test_without_credentials_the_error_says_so(self, monkeypatch):
        for name in ACCESS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        [delivery] = Time().deliver(*parse_targets([f"arn:aws:sqs:{REGION}:123456789012:jobs"], ""))
        assert (delivery.attempts, delivery.error) == (1, "Unable to locate credentials")
