"""Background work's share of the time while users are served."""

import math
from dataclasses import dataclass, field

MOST_CREDIT_S = 0.03


@dataclass(slots=True)
class BackgroundShare:
    """Gives background work `share` of the time while users are present, else all of it."""

    # Each second of users' work earns share / (1 - share) seconds of credit. A unit of background
    # work starts if the credit is positive and then pays its whole time, so that a long unit leaves
    # a debt. Background work always ends, and users lose no more than the share.

    share: float
    # Users count as present for this long after their last work: a client that answers at once must
    # not meet a background unit each time.
    linger_s: float
    _present_until: float = field(default=-math.inf, init=False)
    _credit_s: float = field(default=0.0, init=False)

    def users_worked(self, start: float, end: float) -> None:
        earned = (end - start) * self.share / (1 - self.share)
        self._credit_s = min(self._credit_s + earned, MOST_CREDIT_S)
        self._present_until = end + self.linger_s

    def users_came(self, now: float) -> None:
        """Users have sent a request."""
        self._present_until = max(self._present_until, now + self.linger_s)

    def background_worked(self, start: float, end: float) -> None:
        if self.users_present(start):
            self._credit_s -= end - start

    def users_present(self, now: float) -> bool:
        """True while users are served and for `linger_s` afterwards."""
        return now < self._present_until

    def wait_s(self, now: float) -> float:
        """Seconds until background work may go on if no user comes."""
        return max(self._present_until - now, 0.0) if self._credit_s <= 0 else 0.0
