"""AWS Signature Version 4 for one small request: enough to write a probe object into an S3 bucket.

Source: Amazon S3 API reference, "Authenticating requests: using the Authorization header".
"""

import hashlib
import hmac
from datetime import datetime
from urllib.parse import urlsplit

REGION = "us-east-1"


def signed_headers(method: str, url: str, body: bytes, *, access_key: str, secret_key: str, now: datetime) -> dict[str, str]:
    """The headers with which `method url` carrying `body` is accepted. `now` is UTC; the URL has no query."""
    parts = urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    body_hash = hashlib.sha256(body).hexdigest()
    headers = {"host": parts.netloc, "x-amz-content-sha256": body_hash, "x-amz-date": stamp}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{parts.path}\n\n{lines}\n{names}\n{body_hash}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret_key}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers
