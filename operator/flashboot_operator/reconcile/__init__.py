"""From what is to what should be, for one ModelReplica at a time; and the operator's own HTTP server."""
