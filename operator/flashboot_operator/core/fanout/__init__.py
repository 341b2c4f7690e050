"""Fan-out: who pulls which part of an arena from whom. Pure; docs/design/0008-fanout.md says why it is so."""
