"""boto3's client of a local Lambda service."""

import boto3
from botocore.config import Config

PATIENCE = 60.0


def lambda_client(url, access, region="us-east-1"):
    """Return a client that tries each call once."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE, max_pool_connections=20)
    keys = {"aws_access_key_id": access.key_id, "aws_secret_access_key": access.secret}
    return boto3.client("lambda", region, endpoint_url=url, config=config, **keys)
