"""Clones without a slow link between: over loopback, and on one node from mapped memory."""
