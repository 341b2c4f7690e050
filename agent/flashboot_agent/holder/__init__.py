"""The holder: a tiny process that keeps the arenas' memfds, so that weights survive restarts of the agent.

It imports the standard library only, maps nothing (see memory/memfd.py for the one exception), has no threads and no
use for a network.
"""
