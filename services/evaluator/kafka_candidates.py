"""CandidateLog on Kafka: candidates and verdicts from the beginning of their topics."""

from dataclasses import dataclass

from reefcommon.events import CandidateEvaluated, CandidateProposed
from reefkit.kafka_topic_log import KafkaTopicLog


@dataclass(frozen=True, slots=True)
class KafkaCandidates:
    candidates: KafkaTopicLog
    evaluations: KafkaTopicLog

    async def read(self) -> tuple[list[CandidateProposed], list[CandidateEvaluated]]:
        # The verdicts last: a candidate that is decided meanwhile must not look undecided.
        candidates = [e for e in await self.candidates.read() if isinstance(e, CandidateProposed)]
        verdicts = [e for e in await self.evaluations.read() if isinstance(e, CandidateEvaluated)]
        decided = {verdict.candidate.event_id for verdict in verdicts}
        return [one for one in candidates if one.event_id not in decided], verdicts
