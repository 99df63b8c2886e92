"""A client of the local S3."""

from datetime import timedelta

from obstore.store import S3Store

from reefstack.spec import S3Writable

REGION = "us-east-1"
BUCKET = "tansu"


def bucket(at: S3Writable, *, timeout_s: float) -> S3Store:
    """The bucket of the broker. A failed request is not repeated: the caller decides that."""
    return S3Store(
        at.bucket,
        endpoint=at.url,
        region=REGION,
        access_key_id=at.access_key,
        secret_access_key=at.secret_key,
        client_options={"allow_http": True, "timeout": timedelta(seconds=timeout_s)},
        retry_config={"max_retries": 0},
    )
