"""The programs of a `serve.yaml`. Pure: equal configs, ports and paths give equal plans."""

from reefcommon.config import ServeConfig
from reefstack import object_store, services, tansu, valkey
from reefstack.spec import ProcessSpec, Site, StoreKind

ROLES = ("kafka", "redis", services.ENGINE, *services.SERVICES)


def roles(config: ServeConfig, only: frozenset[str] | None = None) -> tuple[str, ...]:
    """The roles of this machine: all within `only` that the config does not place elsewhere."""
    elsewhere = {
        "kafka": bool(config.external.kafka),
        "redis": bool(config.external.redis),
        services.ENGINE: bool(config.serving.engines),
    }
    return tuple(
        role for role in ROLES if not elsewhere.get(role, False) and (only is None or role in only)
    )


def programs(wanted: tuple[str, ...], store: StoreKind | None) -> tuple[str, ...]:
    """The names of the programs of these roles."""
    names = {"kafka": (*filter(None, (store,)), tansu.NAME), "redis": (valkey.NAME,)}
    return tuple(name for role in wanted for name in names.get(role, (role,)))


def listeners(wanted: tuple[str, ...], store: StoreKind | None) -> tuple[str, ...]:
    """The names of the ports of these roles."""
    return (*wanted, *object_store.listeners(store)) if store and "kafka" in wanted else wanted


def environment(config: ServeConfig, site: Site) -> dict[str, str]:
    """`REEF_*` for every service: the fields of `SystemSettings`, and limits for libraries."""
    external, ports = config.external, site.ports
    kafka = f"127.0.0.1:{ports['kafka']}" if "kafka" in ports else ""
    redis = f"redis://127.0.0.1:{ports['redis']}/0" if "redis" in ports else ""
    engines = ",".join(config.serving.engines) or config.serving.via or site.url(services.ENGINE)
    values = {
        "REEF_CONFIG": str(site.config_path or ""),
        "REEF_STATE_DIR": str(site.state_dir),
        "REEF_KAFKA_BOOTSTRAP": external.kafka or kafka,
        "REEF_KAFKA_IDEMPOTENCE": str(bool(external.kafka) and external.kafka_idempotence).lower(),
        "REEF_REDIS_URL": external.redis or redis,
        "REEF_CLICKHOUSE_URL": external.clickhouse or "",
        "REEF_ARTIFACTS_URL": external.artifacts or "",
        "REEF_ENGINE_URLS": engines,
        "REEF_OTLP_ENDPOINT": external.otlp or "",
        "REEF_MODEL_PATH": str(site.model_path or ""),
        "REEF_MODEL_NAME": config.model.served_as,
        **{f"REEF_{name.upper()}_URL": site.url(name) for name in services.SERVICES},
    }
    return {
        **{name: value for name, value in values.items() if value},
        # else each process of a library takes both cores, or asks the network
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def infrastructure(wanted: tuple[str, ...], site: Site) -> tuple[ProcessSpec, ...]:
    """The broker, the store below it, and the store of release heads, in starting order."""
    specs: list[ProcessSpec] = []
    if "kafka" in wanted:
        specs += [object_store.spec(site)] if site.store else []
        specs.append(tansu.spec(site))
    if "redis" in wanted:
        specs.append(valkey.spec(site))
    return tuple(specs)


def applications(
    wanted: tuple[str, ...], config: ServeConfig, site: Site
) -> tuple[ProcessSpec, ...]:
    """The serving node and the services, in starting order."""
    env = environment(config, site)
    present = frozenset({services.TOPICS, *programs(wanted, site.store)})
    specs: list[ProcessSpec] = []
    if services.ENGINE in wanted:
        # with one staged and one on trial
        adapters = len(config.all_scenarios) * (config.serving.resident_adapters + 2)
        served_as = config.model.served_as
        specs.append(services.engine(site, served_as=served_as, adapters=adapters, env=env))
    started = [name for name in services.SERVICES if name in wanted]
    specs += [services.service(name, site, env=env, present=present) for name in started]
    return tuple(specs)
