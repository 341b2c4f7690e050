"""Benchmarks: each figure is a ratio to a limit of the machine or to a peer, measured in the same run on the same bytes.

`make bench BENCH=load|attach|clone|fanout|repair|isolation|plan|all`; docs/benchmarks/README.md says what each row means.
"""
