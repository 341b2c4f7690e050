"""The API server: a client with a deadline per call, reflectors, the Lease, Events, kopf. Decides nothing."""
