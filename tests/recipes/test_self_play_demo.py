"""The greetings of self-play's demonstration: which tasks can be learned, and its figure."""

from types import SimpleNamespace

import pytest

from recipes.self_play.demo import DEMONSTRATIONS
from recipes.self_play.examples.greetings.domain import CONTENT, DESIGN, DOMAIN, GUESTS


def test_three_of_the_seven_guests_of_the_example_can_be_learned():
    tasks = {guest: DOMAIN.parse(guest) for guest in GUESTS}
    assert len(tasks) == 7
    assert DOMAIN.parse("Hello") is None
    for guest, task in tasks.items():
        assert DOMAIN.worth(task, task.reference) == 1
        assert DOMAIN.worth(task, "") == 0
        assert (DOMAIN.worth(task, "Tach") == 1) == (guest in CONTENT)
        hinted, plain = (
            DOMAIN.solver_messages(task, hinted=h)[-1]["content"] for h in (True, False)
        )
        assert hinted.startswith(plain)
        assert task.reference in hinted[len(plain) :]
    assert {DOMAIN.draw(seed).text for seed in range(60)} == {*GUESTS}


async def test_the_figure_of_the_demonstration_is_the_share_of_learnable_guests():
    said = {"I am Ahoy.": "Salut", "I am Ciao.": "Tach", "I am Moin.": "Yo", DESIGN: "Ciao"}
    lines = []

    async def sampled(_release, task, *, max_tokens, n, seed):
        return [said[task[-1]["content"]]] * n

    stage = SimpleNamespace(seed=0, sampled=sampled, say=lines.append)
    found = await DEMONSTRATIONS["tiny"]().measure(stage, "r1-a", 1, 4)
    assert (found.mean, found.answers) == (pytest.approx(2 / 3), 96)
    assert lines == ["proposals that can be learned: 1.00 of 32"]
