"""Retention: a TTL on each table of traffic."""

# The release chain is kept for ever, and so is a report that still waits.

import structlog

from services.experience.clickhouse.client import Database

log = structlog.get_logger()

_TRAFFIC = ("records", "reports", "samples", "refusals", "steps", "units", "signals", "turns")
_TIME = dict.fromkeys(_TRAFFIC, "at")
_TIME |= {"sessions": "last_at"}
# A report that still waits, and a session that has not ended, are kept, however old they are.
_UNLESS = {
    "reports": " DELETE WHERE state != 'parked'",
    "turns": " DELETE WHERE state NOT IN ('open', 'passed')",
}


async def keep(database: Database, days: int) -> list[str]:
    """Remove rows of traffic `days` after their events, in the background; 0: never.

    Returns the changed tables. Raises Unavailable.
    """
    rows = await database.query(
        "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"
    )
    engines = {row["name"]: row["engine_full"] for row in rows if row["name"] in _TIME}
    changed = []
    for table, engine in sorted(engines.items()):
        if days and f"toIntervalDay({days})" not in engine:
            rule = f"toDateTime({_TIME[table]}) + toIntervalDay({days}){_UNLESS.get(table, '')}"
            # Without a rewrite of the present parts: later merges remove the old rows.
            await database.command(
                f"ALTER TABLE {table} MODIFY TTL {rule} SETTINGS materialize_ttl_after_modify = 0"
            )
        elif not days and " TTL " in engine:
            await database.command(f"ALTER TABLE {table} REMOVE TTL")
        else:
            continue
        changed.append(table)
    if changed:
        log.info("retention_changed", tables=changed, kept_days=days or "for ever")
    return changed
