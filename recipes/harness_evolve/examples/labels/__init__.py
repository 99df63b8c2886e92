"""Labels: users ask an agent for a file, and a skill makes it write one."""
