"""The latest receipts of this process, so that a report on them needs no look-up."""


class Recent:
    """Receipt -> (scenario, kind). Holds between half of `limit` and `limit` of the latest."""

    def __init__(self, limit: int = 100_000) -> None:
        self._half = max(limit // 2, 1)
        self._young: dict[str, tuple[str, str]] = {}
        self._old: dict[str, tuple[str, str]] = {}

    def add(self, receipt: str, scenario: str, kind: str) -> None:
        self._young[receipt] = (scenario, kind)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}

    def get(self, receipt: str) -> tuple[str, str] | None:
        """(scenario, kind) of a receipt, if it is remembered."""
        return self._young.get(receipt) or self._old.get(receipt)
