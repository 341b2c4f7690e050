"""`flashboot`: commands for people. docs/reference/cli.md."""
