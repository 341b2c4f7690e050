"""Sparse deltas: their sizes beside the entropy and other codecs, and their speeds beside memcpy."""
