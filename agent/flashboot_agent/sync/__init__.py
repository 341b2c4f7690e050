"""Versions of weights from a trainer to whoever holds an earlier one: publishing deltas as a chain, and following it.

    trainer: Publisher (publisher.py) → a folder with deltas and a chain document → any HTTP server with ranges
    receiver: Receiver (receive.py) → an origin (directory or HTTP) → deltas, one after another → an arena

docs/sparse-sync.md tells how to use it, docs/design/0024 why it is so.
"""
