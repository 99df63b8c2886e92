"""Waits for a program of the stack: until it is ready, until it hangs."""

import asyncio
import json
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from obstore.exceptions import BaseError

from reefstack import s3
from reefstack.ports import held_by_stranger, holder_of
from reefstack.process import Child
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.spec import HttpReady, KafkaAnswers, Probe, ProcessSpec, RedisAnswers, S3Writable

_TIMEOUT_S = 3.0
# ApiVersions (18) version 0, which needs no store: length 10, correlation id 1, no client id.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


async def until_ready(
    child: Child, within_s: float, policy: RestartPolicy, tell: Callable[[StackEvent], None]
) -> str:
    """Return "" when `child` is ready, else why it is not: it ended, or `within_s` is over."""
    spec, loop = child.spec, asyncio.get_running_loop()
    deadline, last = loop.time() + within_s, ""
    while not child.ended:
        reason = await why_not_ready(spec.probe)
        if not reason:
            # a stranger that took the port after our check answers as ours would
            port = _smallest_question(spec.probe)[1]
            if await asyncio.to_thread(held_by_stranger, port, child.record.pid):
                reason = f"port {port} is held by another program: {holder_of(port)}"
        if not reason and not child.ended:
            return ""
        if reason != last:
            tell(StackEvent(spec.name, "waiting", reason))
            last = reason
        if loop.time() > deadline:
            return reason
        await asyncio.sleep(policy.probe_every_s)
    return "it ended"


async def until_hung(spec: ProcessSpec, ready: Callable[[], bool], policy: RestartPolicy) -> str:
    """Return when the program has given no sign of life for too long."""
    now = asyncio.get_running_loop().time
    since, answered, patience_s = now(), False, policy.hung_after_s
    while True:
        # before its first sign of life it has the time that a start may take
        limit_s = patience_s if answered or ready() else max(spec.ready_within_s, patience_s)
        if now() - since >= limit_s:
            return f"no sign of life for {limit_s:g} s"
        await asyncio.sleep(policy.alive_every_s)
        if await lives(spec.alive or spec.probe):
            since, answered = now(), True


async def why_not_ready(probe: Probe) -> str:
    """Return "" if the program is ready, else the reason. Takes a few seconds at most."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await _answer(probe)
            if not answer:
                return "no answer yet"
            match probe:
                case HttpReady():
                    return _http_refusal(answer)
                case RedisAnswers():
                    return "" if answer.startswith(b"+PONG") else "not answering yet"
                case KafkaAnswers():
                    return await _kafka(probe)
                case S3Writable():
                    return await _s3(probe)
    except TimeoutError:
        return "no answer yet"
    except OSError:
        return "not listening yet"


async def lives(probe: Probe) -> bool:
    """Whether the program gives any answer within a few seconds."""
    # a deadlocked program gives none, although the kernel still accepts connections
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _answer(probe) != b""
    except OSError:  # or a TimeoutError
        return False


async def _answer(probe: Probe) -> bytes:
    # By hand: the clients of HTTP and Redis take 0.7 s to import, before the first program starts.
    host, port, question = _smallest_question(probe)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(question)
        answer = await reader.read(4096)
        # the body, which says why it is not ready, may come by itself
        refused = isinstance(probe, HttpReady) and _http_refusal(answer)
        return answer + await reader.read(4096) if refused else answer
    finally:
        writer.close()


def _smallest_question(probe: Probe) -> tuple[str, int, bytes]:
    if isinstance(probe, KafkaAnswers):
        host, _, port = probe.bootstrap.split(",")[0].rpartition(":")
        return host, int(port), _API_VERSIONS
    parts = urlsplit(probe.url)
    get = f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode()
    question = b"PING\r\n" if isinstance(probe, RedisAnswers) else get
    return parts.hostname or "127.0.0.1", parts.port or 80, question


def _http_refusal(answer: bytes) -> str:
    headers, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    _, _, status = headers.partition("\r\n")[0].partition(" ")
    if status.startswith("200"):
        return ""
    reason = f"{status[:3]} {body[:200].strip()}".strip()
    try:
        names = list(json.loads(body)["failures"])
    except (ValueError, TypeError, KeyError):  # an answer of another program, or a part of one
        return reason
    # a display shows the first line alone
    return f"waits for the {', the '.join(names)}\n{reason}" if names else reason


async def _kafka(probe: KafkaAnswers) -> str:
    client = AIOKafkaAdminClient(bootstrap_servers=probe.bootstrap)
    try:
        await client.start()
        await client.list_topics()
    except (KafkaError, OSError) as error:
        return f"not answering yet ({type(error).__name__})"
    finally:
        await client.close()
    return ""


async def _s3(probe: S3Writable) -> str:
    try:
        await s3.bucket(probe, timeout_s=_TIMEOUT_S).put_async("reef-write-probe", b"ready")
    except (BaseError, OSError) as error:
        return f"writes are refused so far ({' '.join(str(error).split())[:100]})"
    return ""
