"""Login to ElastiCache by IAM: a password that is a signed request, good for 15 minutes."""

import re
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from serfer.core.errors import UsageError
from serfer.storage.redis.errors import RedisError

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

_GOOD_FOR_S = 900  # ElastiCache takes no longer life


class IamLogin:
    """Makes a token for each new connection, so that none is ever too old; botocore finds the AWS credentials.

    A token is `CACHE/?Action=connect&User=USER&X-Amz-...`, a presigned GET request without its scheme, as
    "Authenticating with IAM" in the ElastiCache User Guide describes it; a serverless cache's also says so.
    """

    def __init__(self, user: str, cache: str, *, region: str | None, serverless: bool) -> None:
        self._session = Session()
        self._lock = Lock()
        self._user = user
        self._region = region or self._session.get_config_variable("region")
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,49}", cache):
            raise UsageError("--store: iam= takes the cache's name, in lower case")
        if not self._region:
            raise UsageError("--store: login by IAM needs a region: add iam_region=REGION, or set AWS_DEFAULT_REGION")
        kind = {"ResourceType": "ServerlessCache"} if serverless else {}
        self._request = f"https://{cache}/?{urlencode({'Action': 'connect', 'User': user, **kind})}"

    def credentials(self) -> tuple[str, str]:
        request = AWSRequest("GET", self._request)
        try:
            SigV4QueryAuth(self._aws_credentials(), "elasticache", self._region, _GOOD_FOR_S).add_auth(request)
        except BotoCoreError as error:
            raise RedisError(f"cannot be used: its IAM token cannot be signed ({error})") from error
        return self._user, str(request.url).removeprefix("https://")

    def _aws_credentials(self) -> "ReadOnlyCredentials":
        with self._lock:
            credentials = self._session.get_credentials()
        if credentials is None:
            raise RedisError(
                "cannot be used: iam= in --store needs AWS credentials, and there are none: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or give the machine or function a role"
            )
        return credentials.get_frozen_credentials()
