"""The curl commands that are printed for a first own request: short, and streamed."""

import json
import shlex

MAX_TOKENS = 24


def chat(url: str, model: str, question: str, *, release_id: str = "", bearer: bool = False) -> str:
    """Return a curl command. `bearer` adds $REEF_TOKEN, in quotes that let the shell fill it."""
    messages = [{"role": "user", "content": question}]
    request = {"model": model, "max_tokens": MAX_TOKENS, "stream": True, "messages": messages}
    # -N: show the stream as it comes.
    parts = [f"curl -N {url}/v1/chat/completions"]
    if bearer:
        parts.append('-H "authorization: Bearer $REEF_TOKEN"')
    parts.append("-H 'content-type: application/json'")
    if release_id:
        parts.append(f"-H 'x-reef-release-id: {release_id}'")
    return f"{' '.join(parts)} -d {shlex.quote(json.dumps(request))}"
