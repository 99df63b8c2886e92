"""Create the missing topics and the artifact repository. May run at every start."""

import asyncio
import sys
from urllib.parse import unquote, urlsplit

import structlog
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcommon.errors import BadConfig, Unavailable
from reefcommon.settings import SystemSettings
from reefkit.kafka_topics import ensure_topics
from reefkit.retry import GaveUp, RetryPolicy, retried
from reefkit.telemetry import set_up

log = structlog.get_logger()


class Settings(BaseSettings):
    """`REEF_SETUP_*`."""

    model_config = SettingsConfigDict(env_prefix="REEF_SETUP_", extra="forbid", frozen=True)

    replication_factor: int = Field(1, ge=1)
    """copies of each topic: at most the number of Kafka nodes"""
    storage_namespace: str = "local://reef"
    """where lakeFS keeps the objects of the repository: local://…, s3://…, …"""
    attempts: int = Field(30, ge=1)
    """tries, a second apart, before the job fails"""
    attempt_timeout_s: float = Field(20.0, gt=0)
    """longest wait for the broker in one try"""


def ensure_repository(url: str, storage_namespace: str) -> bool:
    """Create the lakeFS repository of REEF_ARTIFACTS_URL. Returns whether it was missing.

    Raises:
        BadConfig: not a lakeFS URL.
        Unavailable: lakeFS does not answer, or refuses.
    """
    import lakefs  # takes two seconds, and an embedded artifact store does without
    import urllib3.exceptions
    from lakefs.exceptions import LakeFSException

    parts = urlsplit(url)
    if parts.scheme not in ("lakefs", "lakefs+https") or not parts.hostname:
        form = "lakefs://key:secret@host:port/repository (lakefs+https:// for TLS)"
        raise BadConfig(f"REEF_ARTIFACTS_URL: must be {form}")
    scheme = "https" if parts.scheme.endswith("https") else "http"
    host = f"{scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    client = lakefs.Client(
        host=host, username=unquote(parts.username or ""), password=unquote(parts.password or "")
    )  # type: ignore[no-untyped-call]
    name = parts.path.strip("/")
    try:
        if any(found.id == name for found in lakefs.repositories(client=client, prefix=name)):
            return False
        lakefs.Repository(name, client=client).create(
            storage_namespace=storage_namespace, exist_ok=True
        )
    except (LakeFSException, urllib3.exceptions.HTTPError) as error:
        reason = f"lakeFS at {host} cannot make the repository {name!r}: {error}"
        raise Unavailable(reason) from error
    return True


async def make_topics(system: SystemSettings, settings: Settings) -> list[str]:
    """Create the missing topics. Raises Unavailable, also if the broker is silent."""
    try:
        # A broker may take the connection and stay silent.
        async with asyncio.timeout(settings.attempt_timeout_s):
            return await ensure_topics(
                system.kafka_bootstrap, replication_factor=settings.replication_factor
            )
    except TimeoutError:
        waited = f"{settings.attempt_timeout_s:g} s"
        raise Unavailable(f"{system.kafka_bootstrap} did not answer within {waited}") from None


async def set_up_systems(system: SystemSettings, settings: Settings) -> None:
    """Create topics and repository. Raises BadConfig; GaveUp after the last try."""

    async def attempt() -> None:
        # Topics first: no service starts without them.
        log.info("topics_ready", created=await make_topics(system, settings))
        if url := system.artifacts_url:
            created = await asyncio.to_thread(ensure_repository, url, settings.storage_namespace)
            log.info("repository_ready", created=created)

    policy = RetryPolicy(first_delay_s=1, max_delay_s=1, max_attempts=settings.attempts)
    await retried(attempt, policy, name="setup")


def main() -> int:
    """Exit status 2 if a setting is wrong, 1 if a system does not answer."""
    set_up("setup")
    try:
        asyncio.run(set_up_systems(SystemSettings.load(), Settings()))
    except (BadConfig, GaveUp) as error:
        sys.stderr.write(f"setup: {error}\n")
        return 2 if isinstance(error, BadConfig) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
