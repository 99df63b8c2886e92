"""Whether a program is ready. Each probe does the smallest useful request."""

import asyncio
import struct
from urllib.parse import urlsplit

import aiohttp
import redis.asyncio
import redis.exceptions
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from obstore.exceptions import BaseError

from reefstack import s3
from reefstack.spec import HttpReady, KafkaAnswers, Probe, RedisAnswers, S3Writable, TcpOpen

_TIMEOUT_S = 3.0
# ApiVersions (18) version 0, which needs no store: length 10, correlation id 1, no client id.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


async def why_not_ready(probe: Probe) -> str:
    """Return "" if the program is ready, else the reason. Takes a few seconds at most."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            match probe:
                case HttpReady():
                    return await _http(probe)
                case KafkaAnswers():
                    return await _kafka(probe)
                case RedisAnswers():
                    return await _redis(probe)
                case S3Writable():
                    return await _s3(probe)
                case TcpOpen():
                    return await _tcp(probe.host, probe.port)
    except TimeoutError:
        return "no answer yet"


async def lives(probe: Probe) -> bool:
    """Whether the program gives any answer within a few seconds.

    A deadlocked program gives none, although the kernel still accepts connections.
    """
    host, port, question = _smallest_question(probe)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return not question or await reader.read(1) != b""
            finally:
                writer.close()
    except (TimeoutError, OSError):
        return False


def _smallest_question(probe: Probe) -> tuple[str, int, bytes]:
    match probe:
        case HttpReady(url=url) | S3Writable(url=url):
            parts = urlsplit(url)
            question = f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode()
            return parts.hostname or "127.0.0.1", parts.port or 80, question
        case KafkaAnswers():
            host, _, port = probe.bootstrap.split(",")[0].rpartition(":")
            return host, int(port), _API_VERSIONS
        case RedisAnswers(url=url):
            parts = urlsplit(url)
            return parts.hostname or "127.0.0.1", parts.port or 6379, b"PING\r\n"
        case TcpOpen():
            return probe.host, probe.port, b""


async def _tcp(host: str, port: int) -> str:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return "not listening yet"
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return "not listening yet"
    return ""


async def _http(probe: HttpReady) -> str:
    try:
        async with aiohttp.ClientSession() as session, session.get(probe.url) as response:
            if response.status == 200:
                return ""
            text = (await response.text())[:200].strip()
            return f"{response.status} {text}"
    except (aiohttp.ClientError, OSError):
        return "not listening yet"


async def _kafka(probe: KafkaAnswers) -> str:
    host, _, port = probe.bootstrap.split(",")[0].rpartition(":")
    if reason := await _tcp(host, int(port)):
        return reason
    client = AIOKafkaAdminClient(bootstrap_servers=probe.bootstrap)
    try:
        await client.start()
        await client.list_topics()
    except (KafkaError, OSError) as error:
        return f"not answering yet ({type(error).__name__})"
    finally:
        await client.close()
    return ""


async def _redis(probe: RedisAnswers) -> str:
    client = redis.asyncio.Redis.from_url(probe.url)
    try:
        await client.ping()
    except (redis.exceptions.RedisError, OSError):
        return "not answering yet"
    finally:
        await client.aclose()
    return ""


async def _s3(probe: S3Writable) -> str:
    try:
        await s3.bucket(probe, timeout_s=_TIMEOUT_S).put_async("reef-write-probe", b"ready")
    except (BaseError, OSError) as error:
        return f"writes are refused so far ({' '.join(str(error).split())[:100]})"
    return ""
