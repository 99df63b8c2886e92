"""Other vendors' request formats, as a layer around one chat request."""

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
PATHS = frozenset({MESSAGES, COUNT_TOKENS, RESPONSES})
