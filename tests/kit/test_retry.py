"""Retries end when a policy says so, and at no other time."""

import asyncio
import socket
import ssl

import pytest

from reefcommon.errors import Poison, Unavailable, said
from reefkit.retry import GaveUp, RetryPolicy, retried


class Failing:
    """Fails `times` times."""

    def __init__(self, times, error=Unavailable):
        self.left, self.calls, self.error = times, 0, error

    async def __call__(self):
        self.calls += 1
        if self.calls <= self.left:
            raise self.error("away, as asked")
        return "there"


async def test_without_a_limit_it_goes_on_until_the_call_succeeds():
    call, reasons = Failing(9), []
    assert await retried(call, RetryPolicy(0.0), name="work", waiting=reasons.append) == "there"
    assert (call.calls, len(reasons)) == (10, 9)


async def test_it_gives_up_after_the_attempts_of_its_policy():
    call = Failing(9)
    with pytest.raises(GaveUp, match="tried 3 times"):
        await retried(call, RetryPolicy(0.0, max_attempts=3), name="work")
    assert call.calls == 3


async def test_the_reason_of_a_wait_names_no_class():
    reasons = []
    await retried(Failing(1), RetryPolicy(0.0), name="work", waiting=reasons.append)
    assert reasons == ["waits for an outside system: away, as asked"]
    refused = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")
    words = [said(error) for error in (refused, TimeoutError(), OSError("no HTTP answer"))]
    assert words == ["Connection refused", "no answer in time", "no HTTP answer"]
    # The numbers of these two are no `errno`.
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    distrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")
    assert said(unknown) == "Name or service not known"
    assert said(distrusted) == "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"


async def test_another_error_is_raised_at_once():
    call = Failing(9, Poison)
    with pytest.raises(Poison):
        await retried(call, RetryPolicy(0.0), name="work")
    assert call.calls == 1


async def test_a_try_that_takes_too_long_is_a_failure():
    policy = RetryPolicy(0.0, max_attempts=2)
    with pytest.raises(GaveUp, match=r"no answer within 0.01 s"):
        await retried(lambda: asyncio.sleep(60), policy, name="work", within_s=0.01)


def test_a_delay_stays_within_its_bound_however_often_it_failed():
    assert [RetryPolicy().delay_s(failures) for failures in (1, 2, 3, 5000)] == [
        0.25,
        0.5,
        1.0,
        5.0,
    ]
