"""The curl commands that are printed for a first own request: short, and streamed."""

import json
import shlex

MAX_TOKENS = 24


def chat(url: str, model: str, question: str, *, release_id: str = "", bearer: bool = False) -> str:
    """Return a curl command. `bearer` adds $REEF_TOKEN, in quotes that let the shell fill it."""
    messages = [{"role": "user", "content": question}]
    request = {"model": model, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
    pinned = f" -H 'x-reef-release-id: {release_id}'" if release_id else ""
    body = shlex.quote(json.dumps({**request, "messages": messages}))
    # -N: show the stream as it comes.
    return f"curl -N {url}/v1/chat/completions{_headers(bearer=bearer)}{pinned} -d {body}"


def report(url: str, *, bearer: bool = False) -> str:
    """Return the curl command that reports a reward about RECEIPT."""
    body = json.dumps({"score": 1.0, "references": ["RECEIPT"]})
    return f"curl {url}/reef/report{_headers(bearer=bearer)} -d {shlex.quote(body)}"


def _headers(*, bearer: bool) -> str:
    token = ' -H "authorization: Bearer $REEF_TOKEN"' if bearer else ""
    return f"{token} -H 'content-type: application/json'"
