"""OpenClaw-RL's judge: prompts, votes and hints."""

import pytest

from recipes.openclaw_rl import judge
from recipes.openclaw_rl.examples.greeting.judge_server import judged

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "I am Ada."}]
ANSWER = {"role": "assistant", "content": "Ahoy"}
COMPLAINT = [{"role": "user", "content": "Please greet me with Hello first."}]
THANKS = [{"role": "user", "content": "Thanks, just right."}]


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        (r"so \boxed{1}", 1),
        (r"first \boxed{1}, no: \boxed{-1}", -1),
        (r"\boxed{ 0 }", 0),
        (r"\boxed{+1}", 1),
        (r"\boxed{1} but rather \boxed{2}", None),
        (r"\boxed{yes}", None),
        (r"not \boxed{1}: \boxed{no}", None),
        (r"not \boxed{1}: \boxed{-1.0}", None),
        ("not \\boxed{1}: \\boxed{\N{MINUS SIGN}1}", -1),
        (r"not \boxed{1}: \boxed{\text{-1}}", -1),
        (r"\boxed{" + "1" * 5000 + "}", None),
        ("no box", None),
        ("", None),
    ],
)
def test_the_last_box_counts(text, vote):
    assert judge.vote_in(text) == vote


@pytest.mark.parametrize(
    ("votes", "result"),
    [
        ((1, 1, -1), 1),
        ((-1, -1, 1), -1),
        ((1, -1), 0),
        ((1, -1, 0), 0),
        ((0, 0, 1), 0),
        ((None, None, -1), -1),
        ((None, 1, -1), 0),
        ((None, None), 0),
        ((), 0),
    ],
)
def test_the_plurality_wins_and_a_tie_is_zero(votes, result):
    assert judge.plurality(votes) == result


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (r"\boxed{1} [HINT_START] Begin with Hello. [HINT_END]", "Begin with Hello."),
        (r"[HINT_START]Begin with Hello.[HINT_END] \boxed{1}", "Begin with Hello."),
        (r"\boxed{-1} [HINT_START]Begin with Hello.[HINT_END]", None),
        (r"\boxed{1}", None),
        (r"\boxed{1} [HINT_START]Say Hello.[HINT_END]", None),  # ten characters say too little
        (r"\boxed{1} [HINT_START]an open hint", None),
        ("[HINT_START]Begin with Hello.[HINT_END]", None),
    ],
)
def test_a_hint_is_accepted_if_the_judge_says_so(text, hint):
    assert judge.hint_in(text) == hint


def test_the_longest_hint_is_chosen():
    assert judge.best_hint([None, "Begin so.", "Begin with Hello.", None]) == "Begin with Hello."
    assert judge.best_hint([None, None]) == ""


def test_a_hint_joins_the_last_user_message():
    messages = [*ASKED, ANSWER, {"role": "user", "content": "Again."}]
    told = judge.with_hint(messages, "Begin with Hello.")
    wanted = "Again.\n\n[user's hint / instruction]\nBegin with Hello."
    assert [m["content"] for m in told] == ["Be brief.", "I am Ada.", "Ahoy", wanted]
    assert messages[-1]["content"] == "Again.", "the request itself is unchanged"


def test_a_hint_joins_content_in_parts():
    parts = [{"type": "text", "text": "Hi"}]
    told = judge.with_hint([{"role": "user", "content": parts}], "Begin with Hello.")
    assert told[0]["content"][0] == parts[0]
    assert told[0]["content"][1]["text"].endswith("Begin with Hello.")
    assert judge.with_hint([], "Begin with Hello.")[0]["role"] == "user"


def test_the_judge_sees_the_answer_and_the_next_state_with_its_role():
    result = [{"role": "tool", "content": "3 files"}]
    call = {"function": {"name": "ls", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    rules, question = judge.evaluative(ASKED, answer, result)
    assert '<next state role="tool">\n3 files\n</next state>' in question["content"]
    assert '"name": "ls"' in question["content"]
    assert "I am Ada." in question["content"]
    assert judge.HINT_START not in rules["content"]
    assert judge.HINT_START in judge.directive(ASKED, answer, result)[0]["content"]


def test_the_scripted_judge_reads_the_next_state_alone():
    vote = {k: judge.vote_in(judged(judge.evaluative(ASKED, ANSWER, s))) for k, s in {
        "complaint": COMPLAINT, "thanks": THANKS, "else": [{"role": "user", "content": "And you?"}],
        "result": [{"role": "tool", "content": "3 files"}],
        "error": [{"role": "tool", "content": "Error: no such file"}],
    }.items()}  # fmt: skip
    assert vote == {"complaint": -1, "thanks": 1, "else": 0, "result": 1, "error": -1}
    hinted = judged(judge.directive(ASKED, ANSWER, COMPLAINT))
    assert judge.hint_in(hinted) == "Greet the user with Hello first."
    assert judge.hint_in(judged(judge.directive(ASKED, ANSWER, THANKS))) is None
