"""CandidateLog on Kafka: candidates and verdicts from the beginning of their topics."""

from dataclasses import dataclass

from reefcommon.events import CandidateEvaluated, CandidateProposed
from reefkit.kafka_topic_log import KafkaTopicLog


@dataclass(frozen=True, slots=True)
class KafkaCandidates:
    candidates: KafkaTopicLog
    evaluations: KafkaTopicLog

    async def unjudged(self) -> list[CandidateProposed]:
        judged = {
            event.candidate.event_id
            for event in await self.evaluations.read()
            if isinstance(event, CandidateEvaluated)
        }
        candidates = [e for e in await self.candidates.read() if isinstance(e, CandidateProposed)]
        return [candidate for candidate in candidates if candidate.event_id not in judged]
