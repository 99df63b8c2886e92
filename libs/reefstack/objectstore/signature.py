"""AWS signature, version 4. Pure."""

import hashlib
import hmac
from functools import lru_cache
from urllib.parse import parse_qsl, quote

from reefstack.objectstore.errors import Refused
from reefstack.objectstore.requests import Request

_ALGORITHM = "AWS4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"


def check(request: Request, *, access_key: str, secret_key: str) -> None:
    """Let a request pass if it was signed with `secret_key`, however long ago. Raises Refused."""
    # source: AWS, "Create a signed AWS API request"; an S3 path is not encoded a second time
    headers = request.headers
    kind, _, rest = headers.get("authorization", "").partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if kind != _ALGORITHM or not {"Credential", "SignedHeaders", "Signature"} <= fields.keys():
        raise Refused(403, "AccessDenied", "the request is not signed")
    key, _, scope = fields["Credential"].partition("/")
    digest = headers.get("x-amz-content-sha256", _UNSIGNED)
    signed = fields["SignedHeaders"]
    lines = [f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed.split(";")]
    query = _canonical(request.query)
    form = "\n".join((request.method, request.path, query, "".join(lines), signed, digest))
    hashed = hashlib.sha256(form.encode()).hexdigest()
    text = "\n".join((_ALGORITHM, headers.get("x-amz-date", ""), scope, hashed))
    wanted = hmac.digest(_signing_key(secret_key, scope), text.encode(), "sha256").hex()
    known = hmac.compare_digest(key.encode(), access_key.encode())
    if not hmac.compare_digest(wanted.encode(), fields["Signature"].encode()) or not known:
        raise Refused(403, "SignatureDoesNotMatch", "the request is signed with another key")
    if digest != _UNSIGNED and hashlib.sha256(request.body).hexdigest() != digest:
        raise Refused(400, "XAmzContentSHA256Mismatch", "the body is not the one that was signed")


def _canonical(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    encoded = [(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


@lru_cache(maxsize=8)
def _signing_key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
