"""ClickHouse: a server by URL, or chDB in this process. One adapter, two constructions."""

from services.experience.clickhouse.audit import ClickHouseAudit
from services.experience.clickhouse.client import Database
from services.experience.clickhouse.keeping import keep
from services.experience.clickhouse.reads import ClickHouseReads
from services.experience.clickhouse.store import ClickHouseStore

__all__ = [
    "ClickHouseAudit",
    "ClickHouseReads",
    "ClickHouseStore",
    "Database",
    "keep",
]
