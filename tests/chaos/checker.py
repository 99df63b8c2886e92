"""The invariants, as pure functions over the facts of a run. Each states HELD or BROKEN, over how
many things, and the evidence.

Nothing here knows how the run was made: the same functions judge planted faults in the tests and
real ones in a campaign.
"""

from collections.abc import Callable, Iterable, Sequence

from tests.chaos import applied, conduct, learning, receipts, releases
from tests.chaos.facts import Facts
from tests.chaos.reading import Stated

Invariant = Callable[[Facts], Stated]

INVARIANTS: tuple[Invariant, ...] = (
    receipts.receipts_in_the_log,
    receipts.receipts_in_the_store,
    applied.reports_applied_once,
    receipts.order_kept,
    receipts.one_answer_a_key,
    learning.trained_once,
    learning.whole_exchanges_trained,
    learning.jobs_agree,
    learning.staleness_obeyed,
    releases.chain_whole,
    releases.heads_agree,
    releases.answered_by_the_chain,
    conduct.nothing_given_up,
    conduct.failures_explained,
    conduct.loop_goes_on,
)


def check(facts: Facts, invariants: Iterable[Invariant] = INVARIANTS) -> list[Stated]:
    """Every invariant, stated."""
    return [invariant(facts) for invariant in invariants]


def all_held(stated: Sequence[Stated]) -> bool:
    """Whether nothing is broken."""
    return all(one.held for one in stated)
