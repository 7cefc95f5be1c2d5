"""Episodes of several turns: environments, tools."""
