"""Everything that tests and the rack need and that is not in the repository, made once and kept in a cache.

Standard library only, so that any Python 3.11 can start from a fresh clone: it is what makes the other environments.
What always holds: an entry of the cache is complete or absent (cache.py), and its name contains the hash of all that it
was made from, so nothing is ever updated in place.
"""
