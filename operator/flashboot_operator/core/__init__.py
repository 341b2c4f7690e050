"""The operator's thinking, without any I/O: facts in, decisions out."""
