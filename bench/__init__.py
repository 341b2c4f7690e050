"""Benchmarks: each figure is a ratio to a limit of the machine or to a peer, measured in the same run.

`make bench BENCH=load|attach|clone|fanout|repair|isolation|plan|all`; docs/benchmarks/README.md explains each row.
"""
