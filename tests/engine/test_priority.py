"""Users (priority 0) are served first; background work gets its share and always ends."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.engine.domain.share import BackgroundShare
from tests.engine.conftest import CHAT, wait_until

pytestmark = pytest.mark.engine
SCORED = {"prompt": [65] * 1500, "max_tokens": 1, "prompt_logprobs": 0, "priority": 10}


def slowed(node, seconds):
    """Every forward takes that long, so that orders of events do not depend on the machine."""
    runner, forward = node.engine.loop.runner, node.engine.loop.runner._forward

    def slow(*args):
        time.sleep(seconds)
        return forward(*args)

    runner._forward = slow
    return node


def test_a_share_is_kept_and_debts_are_paid():
    share = BackgroundShare(share=0.2, linger_s=0.1)
    assert share.wait_s(0.0) == 0.0, "no users: at once"
    clock = background = 0.0
    while clock < 100:
        share.users_worked(clock, clock + 0.05)
        clock += 0.05
        if share.wait_s(clock) == 0:
            share.background_worked(clock, clock + 0.3)
            clock, background = clock + 0.3, background + 0.3
    assert background / clock == pytest.approx(0.2, abs=0.02)
    wait = share.wait_s(clock)
    assert wait <= 0.1
    assert share.wait_s(clock + 0.11) == 0.0, "the users have gone"


def test_idle_users_save_up_little():
    share = BackgroundShare(share=0.5, linger_s=0.1)
    share.users_worked(0.0, 1000.0)
    share.background_worked(1000.0, 1000.2)
    assert share.wait_s(1000.05) > 0


def test_a_user_overtakes_scoring_that_has_begun(own_node):
    # Alone it would read in the chunks of users.
    node = slowed(own_node(background_chunk_tokens=16, prefill_chunk_tokens=16), 0.02)
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        scoring = pool.submit(client.post, "/v1/completions", json=SCORED)
        wait_until(lambda: node.engine.loop.counters.prompt_tokens > 16)
        node.chat(max_tokens=3, ignore_eos=True)
        assert not scoring.done()
        scores = scoring.result().json()["choices"][0]["prompt_logprobs"]
        alone = client.post("/v1/completions", json=SCORED | {"priority": 0}).json()
    assert len(scores) == 1500
    for one, other in zip(scores[1:], alone["choices"][0]["prompt_logprobs"][1:], strict=True):
        assert one["65"]["logprob"] == pytest.approx(other["65"]["logprob"], abs=1e-3)


def test_background_that_is_alone_reads_larger_chunks(own_node):
    node = own_node(background_chunk_tokens=16, prefill_chunk_tokens=400, background_linger_s=60)
    read, chunks = node.engine.loop.background.read, []
    node.engine.loop.background.read = lambda budget, *args, **more: (
        chunks.append(budget) or read(budget, *args, **more)
    )
    with node.client() as client:
        client.post("/v1/completions", json=SCORED)
        assert set(chunks) == {400}
        chunks.clear()
        node.chat(max_tokens=100, ignore_eos=True)
        client.post("/v1/completions", json=SCORED | {"prompt": [65] * 30})
    assert set(chunks) == {16}


def test_full_background_rows_and_queue_keep_no_user_out(own_node):
    node = slowed(own_node(max_num_seqs=2, max_queued_requests=3), 0.005)
    long = {"messages": CHAT, "max_tokens": 1500, "ignore_eos": True, "priority": 5}
    with node.client() as client, ThreadPoolExecutor(5) as pool:
        trial, loop = [], node.engine.loop
        for running, waiting in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3)):
            trial.append(pool.submit(client.post, "/v1/chat/completions", json=long))
            wanted = (running, waiting)
            wait_until(lambda wanted=wanted: (loop.running, loop.waiting) == wanted, 30)
        refused = client.post("/v1/chat/completions", json=long)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert len(node.chat(max_tokens=5, ignore_eos=True)["choices"][0]["token_ids"]) == 5
        assert not any(one.done() for one in trial)
        client.post("/pause?mode=abort")
        client.post("/resume")
        assert {one.result().json()["choices"][0]["finish_reason"] for one in trial} == {"abort"}


def test_a_trial_ends_while_users_never_stop(own_node):
    node = slowed(own_node(prefill_chunk_tokens=32), 0.005)
    answers = {"messages": CHAT, "max_tokens": 12, "ignore_eos": True, "priority": 10, "n": 2}
    with node.client() as client, ThreadPoolExecutor(4) as pool:
        trial = [
            pool.submit(client.post, "/v1/chat/completions", json=answers),
            pool.submit(client.post, "/v1/completions", json=SCORED | {"prompt": [65] * 400}),
        ]
        served = 0
        while not all(one.done() for one in trial):
            node.chat(max_tokens=4, ignore_eos=True)
            served += 1
            assert served < 2000, "the trial starves"
        assert [one.result().status_code for one in trial] == [200, 200]
    assert served > 3


def test_background_requests_go_by_priority_then_arrival(own_node):
    node, order = own_node(max_num_seqs=1), []
    loop = node.engine.loop
    for lane in (loop.users, loop.background):
        join = lane.batch.join
        lane.batch.join = lambda work, *args, join=join: (
            order.append(work.params.seed) or join(work, *args)
        )
    # Seeds name the requests.
    priorities = {5: 30, 2: 10, 4: 20, 3: 10, 1: -1}
    with node.client() as client, ThreadPoolExecutor(5) as pool:
        client.post("/pause?mode=keep")
        asked = []
        for count, (seed, priority) in enumerate(priorities.items(), start=1):
            fields = {"seed": seed, "priority": priority, "max_tokens": 2, "ignore_eos": True}
            asked.append(pool.submit(node.chat, **fields))
            wait_until(lambda count=count: loop.waiting == count)
        client.post("/resume")
        for one in asked:
            one.result()
    assert order == [1, 2, 3, 4, 5]


def test_priority_does_not_change_the_tokens(node):
    fields = {"seed": 8, "max_tokens": 12, "ignore_eos": True}
    user, trial = node.chat(**fields), node.chat(**fields, priority=10)
    assert user["choices"][0]["token_ids"] == trial["choices"][0]["token_ids"]


@pytest.mark.parametrize("mode", ["wait", "keep"])
def test_a_pause_holds_background_work_too(own_node, mode):
    node = slowed(own_node(), 0.01)
    with node.client() as client, ThreadPoolExecutor(2) as pool:
        body = {"messages": CHAT, "max_tokens": 30, "ignore_eos": True, "priority": 1}
        running = pool.submit(client.post, "/v1/chat/completions", json=body)
        wait_until(lambda: node.engine.loop.running == 1)
        client.post(f"/pause?mode={mode}")
        assert node.engine.loop.running == (0 if mode == "wait" else 1)
        steps = node.engine.loop.counters.steps
        time.sleep(0.1)
        assert node.engine.loop.counters.steps == steps
        client.post("/resume")
        assert running.result().json()["usage"]["completion_tokens"] == 30
