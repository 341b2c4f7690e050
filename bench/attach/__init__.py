"""Handing the tensors of a resident model to another process on the same host."""
