"""A rack in miniature: real holders and agents, one network namespace each, under the operator's own planner."""
