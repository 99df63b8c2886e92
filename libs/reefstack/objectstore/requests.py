"""An S3 request to its answer. Path style, a single bucket."""

# Multipart uploads, copies and bodies that are signed in chunks are refused, with 400: the broker's
# client sends none of them, and would repeat a request that is answered with 501.

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape, unescape

from reefstack.objectstore.errors import Refused
from reefstack.objectstore.index import Entry
from reefstack.objectstore.store import Store

_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_QUOTES = {"&quot;": '"', "&apos;": "'"}
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_PAGE = 1000
Headers = dict[str, str]


@dataclass(slots=True)
class Request:
    """An HTTP request. `path` and `query` as sent, header names in lower case."""

    method: str
    path: str
    query: str
    headers: Headers = field(default_factory=dict)
    body: bytes = b""


class Answer(NamedTuple):
    """An HTTP answer. `length`: of the body that a HEAD does not get."""

    status: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    length: int = -1

    def encode(self) -> bytes:
        """The bytes on the wire."""
        length = len(self.body) if self.length < 0 else self.length
        fields = (*self.headers, ("content-length", length))
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        first = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"
        return f"{first}\r\n{lines}\r\n".encode() + self.body


def refusal(error: Refused) -> Answer:
    """The answer that says why a request was not done."""
    text = f"<Error><Code>{error.code}</Code><Message>{escape(str(error))}</Message></Error>"
    return Answer(error.status, (("content-type", "application/xml"),), f"{_XML}{text}".encode())


@dataclass(frozen=True, slots=True)
class Requests:
    """Does requests on a store."""

    store: Store
    bucket: str

    def do(self, request: Request) -> Answer:
        """Do a request at once. Raises Refused, OSError."""
        _, bucket, *rest = unquote(request.path).split("/", 2)
        if bucket != self.bucket:
            raise Refused(404, "NoSuchBucket", f"there is only the bucket {self.bucket}")
        key = rest[0] if rest else ""
        query = parse_qs(request.query, keep_blank_values=True)
        match request.method:
            case "PUT" if key and not query:
                return self._put(key, request)
            case "GET" | "HEAD" if key:
                return self._get(key, request)
            case "DELETE" if key and not query:
                self.store.delete(key)
                return Answer(204)
            case "GET" if query.get("list-type") == ["2"]:
                return self._list({name: values[0] for name, values in query.items()})
            case "POST" if not key and "delete" in query:
                return self._delete_all(request.body)
            case "PUT" | "HEAD" if not key:
                return Answer(200)
        raise Refused(400, "NotImplemented", "this store does not know such a request")

    def _put(self, key: str, request: Request) -> Answer:
        headers = request.headers
        chunked = headers.get("x-amz-content-sha256", "").startswith("S")
        if chunked or "x-amz-copy-source" in headers:
            raise Refused(400, "NotImplemented", "copies and chunked signatures are not known")
        new, if_match = headers.get("if-none-match", ""), headers.get("if-match", "")
        if new not in ("", "*"):
            raise Refused(400, "NotImplemented", "If-None-Match of a PUT can only be *")
        entry = self.store.put(key, request.body, if_match=if_match, if_none_match=bool(new))
        return Answer(200, (("etag", entry.etag),))

    def _get(self, key: str, request: Request) -> Answer:
        entry = self.store.index.entries.get(key)
        if entry is None:
            raise Refused(404, "NoSuchKey", f"there is no object {key}")
        headers = _headers_of(entry)
        if request.headers.get("if-none-match") in (entry.etag, "*"):
            return Answer(304, headers)
        if request.headers.get("if-match", entry.etag) not in (entry.etag, "*"):
            raise Refused(412, "PreconditionFailed", "the object has another etag")
        if request.method == "HEAD":
            return Answer(200, headers, length=entry.size)
        if "range" not in request.headers:
            return Answer(200, headers, self.store.get(entry))
        start, end = _range_of(request.headers["range"], entry.size)
        said = ("content-range", f"bytes {start}-{end - 1}/{entry.size}")
        return Answer(206, (*headers, said), self.store.get(entry, start, end - start))

    def _list(self, query: Headers) -> Answer:
        page = self.store.index.list(
            query.get("prefix", ""),
            after=query.get("start-after", ""),
            start=query.get("continuation-token", ""),
            delimiter=query.get("delimiter", ""),
            limit=min(int(query.get("max-keys", _PAGE)), _PAGE),
        )
        token = f"<NextContinuationToken>{escape(page.next_key)}</NextContinuationToken>"
        truncated = f"<IsTruncated>{str(bool(page.next_key)).lower()}</IsTruncated>"
        count = f"<KeyCount>{len(page.contents) + len(page.prefixes)}</KeyCount>"
        parts = (*page.contents, *page.prefixes, truncated, count, token if page.next_key else "")
        return _xml("ListBucketResult", "".join(parts))

    def _delete_all(self, body: bytes) -> Answer:
        keys = [unescape(key, _QUOTES) for key in _KEY.findall(body.decode())]
        for key in keys:
            self.store.delete(key)
        deleted = (f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml("DeleteResult", "".join(deleted))


def _headers_of(entry: Entry) -> tuple[tuple[str, str], ...]:
    at = format_datetime(datetime.fromtimestamp(entry.at_us // 1_000_000, UTC), usegmt=True)
    return (("etag", entry.etag), ("last-modified", at))


def _range_of(text: str, size: int) -> tuple[int, int]:
    found = _RANGE.fullmatch(text.strip())
    first, last = found.groups() if found is not None else ("", "")
    start = int(first) if first else max(size - int(last or 0), 0)
    end = min(int(last) + 1, size) if first and last else size
    if not (first or last) or start >= end:
        raise Refused(416, "InvalidRange", f"the object has {size} bytes")
    return start, end


def _xml(name: str, inner: str) -> Answer:
    text = f'{_XML}<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'
    return Answer(200, (("content-type", "application/xml"),), text.encode())
