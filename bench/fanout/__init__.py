"""Clones over links of a known rate: one link, many targets at once, nodes that die and nodes that are slow."""
