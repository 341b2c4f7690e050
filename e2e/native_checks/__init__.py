"""Checks of the C++ code without Python: its tests under sanitizers and on another processor, and its fuzz targets.

What is compiled stays in build/checks, one folder per way of compiling, so that a second run compiles what changed.
"""
