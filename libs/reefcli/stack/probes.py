"""Is a program ready? Each probe does the smallest thing that the program is there for."""

import asyncio
from datetime import UTC, datetime

import aiohttp
import redis.asyncio
import redis.exceptions
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from reefcli.stack.sigv4 import signed_headers
from reefcli.stack.spec import HttpReady, KafkaAnswers, Probe, RedisAnswers, S3Writable, TcpOpen

_TIMEOUT_S = 3.0


async def why_not_ready(probe: Probe) -> str:
    """Empty when ready; else the reason, in a few words. Takes a few seconds at most."""
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
    url = f"{probe.url}/{probe.bucket}/reef-write-probe"
    body = b"ready"
    headers = signed_headers("PUT", url, body, access_key=probe.access_key, secret_key=probe.secret_key, now=datetime.now(UTC))
    try:
        async with aiohttp.ClientSession() as session, session.put(url, data=body, headers=headers) as response:
            return "" if response.status == 200 else f"writes are refused with {response.status} so far"
    except (aiohttp.ClientError, OSError):
        return "not listening yet"
