"""ClickHouse, as a server by URL or as chDB in this process."""

from services.experience.clickhouse.audit import ClickHouseAudit
from services.experience.clickhouse.client import Database
from services.experience.clickhouse.keeping import keep
from services.experience.clickhouse.reads import ClickHouseReads
from services.experience.clickhouse.store import ClickHouseStore

__all__ = ["ClickHouseAudit", "ClickHouseReads", "ClickHouseStore", "Database", "keep"]
