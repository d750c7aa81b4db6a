"""A bucket's lifecycle rule that removes old values, since S3 has no time to live of a key; obstore knows no rules."""

from typing import Any

from botocore.session import Session

from serfer.core.errors import SerferError, StoreUnavailableError
from serfer.s3 import code_of, open_client, s3_errors
from serfer.storage.s3.address import Address, BucketUrl
from serfer.storage.s3.errors import Answer, refusal


def ensure_lifecycle(store: BucketUrl, where: Address, session: Session, days: int) -> None:
    """Put our rule for a store's prefix among its bucket's rules, in place of an earlier one of ours.

    It removes versions that were overwritten or deleted, too, but in a directory bucket, which keeps none.
    """
    prefix = store.prefix
    rule: dict[str, Any] = {
        "ID": f"serfer {prefix}",
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        "Expiration": {"Days": days},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
    }
    if not where.sessions:
        rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": days}
    with s3_errors(lambda error: _explain(where, error)):
        client = open_client(session, 2, 5, 3, region_name=where.region, endpoint_url=store.endpoint)
        try:
            rules = client.get_bucket_lifecycle_configuration(Bucket=store.bucket).get("Rules", [])
        except client.exceptions.ClientError as error:
            if code_of(error) != "NoSuchLifecycleConfiguration":
                raise
            rules = []
        others = [other for other in rules if other.get("ID") != rule["ID"]]
        client.put_bucket_lifecycle_configuration(
            Bucket=store.bucket, LifecycleConfiguration={"Rules": [*others, rule]}
        )


def _explain(where: Address, error: Exception) -> SerferError:
    response: Any = getattr(error, "response", None)
    if response is None:
        return StoreUnavailableError(
            f"S3 at {where.url} does not answer: {error}; check --store, AWS_ENDPOINT_URL_S3 and the network"
        )
    details = response.get("Error", {})
    body = f"<Code>{details.get('Code', '')}</Code><Message>{details.get('Message', '')}</Message>"
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    return refusal(where, Answer(status, body.encode()), "to change its lifecycle rules")
