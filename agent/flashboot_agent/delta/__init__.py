"""Lossless sparse deltas between two versions of the same bytes, an arena's or a checkpoint's: docs/reference/
delta-format.md.

The codec is C++ (csrc/delta_*); here are the files that carry deltas, where bytes come from and go to, and the order of
steps that makes applying one safe.
"""
