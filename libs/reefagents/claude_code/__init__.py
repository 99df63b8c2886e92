"""Claude Code, a coding agent for the terminal that speaks Anthropic's Messages."""
