"""Links to objects (AWS: "Sharing objects with presigned URLs"), each good for reading one without credentials.

A link grants what the credentials that sign it may do, and no more than they last: those of a Lambda function or of an
instance last some hours, however late the link says it expires.
"""

from typing import Any
from urllib.parse import quote

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from storage.s3.address import Address

LONGEST_S = 7 * 86_400  # that Signature Version 4 allows


def signed_link(
    credentials: Any,  # noqa: ANN401  botocore's frozen credentials
    where: Address,
    name: str,
    lifetime_s: int,
) -> str:
    """Return the address of a GET of an object, of any range of it, for 1 second to `LONGEST_S`."""
    request = AWSRequest("GET", f"{where.url}/{quote(name, safe='/-_.~')}")
    expires = min(max(1, lifetime_s), LONGEST_S)
    S3SigV4QueryAuth(credentials, where.service, where.region, expires).add_auth(request)
    return str(request.url)
