"""The agents: one HTTP client, and a fleet that keeps each node's last word and tells each node what it shall do."""
