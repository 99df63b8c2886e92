"""The short way through a stream's usual chunk gives what the long way gives."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.assembly import Assembly
from services.gateway.domain.exchange import Asked


class LongWay(Assembly):
    """Never the short one."""

    def _piece(self, chunk: dict[str, Any], choice: Any) -> bool:
        return False


def sometimes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just("absent"), st.none(), values)


ROW = st.fixed_dictionaries({"token": st.just("a"), "logprob": st.floats(-3, 0)})
PART = st.fixed_dictionaries(
    {
        "index": sometimes(st.sampled_from([0, 0, 0, 1, True, 0.0, "0", -1])),
        "delta": st.one_of(
            st.builds(lambda text: {"content": text}, st.text(max_size=3)),
            sometimes(
                st.sampled_from([{}, {"content": None}, {"content": 1}, {"role": "assistant", "content": ""}, {"reasoning": "x"}, "x"])
            ),
        ),
        "logprobs": sometimes(
            st.one_of(st.builds(lambda rows: {"content": rows}, st.lists(ROW, max_size=2)), st.sampled_from([{}, {"content": "x"}]))
        ),
        "finish_reason": sometimes(st.sampled_from(["stop", "length"])),
        "token_ids": sometimes(st.one_of(st.lists(st.integers(0, 99), max_size=2), st.sampled_from([3, "x", [None]]))),
        "prompt_token_ids": st.sampled_from(["absent", "absent", [1, 2], None]),
        "weight_versions": st.sampled_from(["absent", [{"version": "v", "start": 0, "end": 1}]]),
    }
)
CHUNK = st.fixed_dictionaries(
    {
        "id": st.just("c"),
        "model": sometimes(st.just("served")),
        "choices": st.one_of(st.lists(PART, min_size=1, max_size=1), st.lists(PART, max_size=2), st.just("x")),
        "usage": sometimes(st.just({"prompt_tokens": 1, "completion_tokens": 2})),
        "error": st.sampled_from(["absent"] * 5 + [None]),
        "weight_version": sometimes(st.just("v1")),
        "prompt_token_ids": sometimes(st.just([1, 2])),
    }
)


def present(value: Any) -> Any:
    """Without what is absent."""
    if isinstance(value, dict):
        return {key: present(item) for key, item in value.items() if not (isinstance(item, str) and item == "absent")}
    return [present(item) for item in value] if isinstance(value, list) else value


@given(st.lists(CHUNK, min_size=1, max_size=5), st.sampled_from([None, "asked"]), st.booleans(), st.booleans(), st.booleans())
def test_both_ways_agree(chunks: list[Any], model: str | None, logprobs: bool, token_ids: bool, usage: bool) -> None:
    """Any chunks, whatever the client asked for: the same frames for the client, the same record."""
    found = []
    for kind in (Assembly, LongWay):
        assembly = kind("chat.completions", Asked(model, logprobs=logprobs, token_ids=token_ids, usage=usage))
        sent = [chunk for chunk in copy.deepcopy(present(chunks)) if assembly.take(chunk)]
        found.append((sent, assembly.captured(estimate=True), assembly.answer(), assembly.chunks, assembly.error))
    assert repr(found[0]) == repr(found[1])
