"""Dead letters: events that can never be handled, with the reason."""

import base64

from aiokafka import ConsumerRecord
from pydantic_core import from_json

from reefcommon.events import DeadLettered, utc_now
from reefcommon.ids import digest


def dead_letter(record: ConsumerRecord, *, group: str, reason: str, attempts: int) -> DeadLettered:
    scenario = "unknown"
    try:
        body = from_json(record.value or b"{}")
        scenario = str(body.get("scenario", scenario)) if isinstance(body, dict) else scenario
    except ValueError:
        pass
    return DeadLettered(
        event_id="dead-" + digest(group, record.topic, record.partition, record.offset),
        at=utc_now(),
        scenario=scenario,
        group=group,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key.decode(errors="replace") if record.key else None,
        key_base64=base64.b64encode(record.key).decode() if record.key else None,
        headers=tuple((name, base64.b64encode(value).decode()) for name, value in record.headers)
        or None,
        value=base64.b64encode(record.value or b"").decode(),
        reason=reason,
        attempts=attempts,
    )
