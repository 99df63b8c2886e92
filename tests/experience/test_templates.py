"""What is trained on is what the chat template says of the whole conversation, though nothing was ever tokenised again."""

import json
from pathlib import Path

import pytest

from reefcommon.events import SampleReady
from reefstack.models import default_cache_dir, prepare
from services.engine.domain.messages import template_messages
from services.engine.tokenizer import EngineTokenizer
from tests.experience.conftest import Service
from tests.experience.factory import assistant, inference, report, user

pytestmark = pytest.mark.store

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time_in")
]
CALLS = [
    {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    },
    {
        "id": "call_2",
        "type": "function",
        "function": {"name": "time_in", "arguments": '{"city": "Oslo", "hours": 24}'},
    },
]
RESULTS = [
    {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": -3.5}'},
    {"role": "tool", "tool_call_id": "call_2", "content": "22:41"},
]


@pytest.fixture(
    scope="module",
    params=["tiny", pytest.param("smollm2", marks=[pytest.mark.smollm2, pytest.mark.engine])],
)
def tokenizer(request: pytest.FixtureRequest) -> EngineTokenizer:
    if request.param == "smollm2":
        pytest.importorskip("gguf")
    path: Path = prepare(request.param, default_cache_dir())
    return EngineTokenizer(path)


async def test_two_tool_results_in_a_row_are_trained_on_as_the_template_renders_them(
    service: Service, tokenizer: EngineTokenizer
) -> None:
    """E9: the tokens of the trajectory are those of the template over the whole conversation, the mask those that were sampled."""
    question = [
        {"role": "system", "content": "Be exact."},
        user("How cold is it in Oslo, and how late?"),
    ]
    answers = [assistant("", tool_calls=CALLS), assistant("It is -3.5 degrees, at 22:41.")]
    conversations = [question, [*question, answers[0], *RESULTS]]
    events, sampled = [], []
    for number, (said, answer) in enumerate(zip(conversations, answers, strict=True)):
        prompt = tokenizer.encode(rendered(tokenizer, said, asks=True))
        after = rendered(tokenizer, [*said, answer], asks=False).removeprefix(
            rendered(tokenizer, said, asks=True)
        )
        tokens = tokenizer.encode(after.rstrip("\n"))  # the engine stops at the end-of-turn token
        sampled.append(tokens)
        request = {"model": "reef", "messages": said, "tools": TOOLS}
        events.append(
            inference(said, answer, at=number, prompt=prompt, sampled=tokens, request=request)
        )
    await service.take(*events, report(*(event.event_id for event in events)))
    (sample,) = [event for event in service.published.events if isinstance(event, SampleReady)]
    whole = rendered(tokenizer, [*conversations[1], answers[1]], asks=False).rstrip("\n")
    assert sample.untrainable is None
    assert list(sample.tokens) == tokenizer.encode(whole)
    response = sample.tokens[sample.prompt_length :]
    assert [token for token, kept in zip(response, sample.loss_mask, strict=True) if kept] == [
        *sampled[0],
        *sampled[1],
    ]
    between = tokenizer.decode(
        [token for token, kept in zip(response, sample.loss_mask, strict=True) if not kept],
        skip_special_tokens=False,
    )
    assert between.count("22:41") == 1
    assert between.count("-3.5") == 1
    assert json.loads(sample.messages[2]["tool_calls"][1]["function"]["arguments"]) == {
        "city": "Oslo",
        "hours": 24,
    }
    assert [message["role"] for message in sample.messages[3:5]] == ["tool", "tool"]


def rendered(tokenizer: EngineTokenizer, messages: list[dict[str, object]], *, asks: bool) -> str:
    return tokenizer.render(template_messages(messages), TOOLS, {"add_generation_prompt": asks})
