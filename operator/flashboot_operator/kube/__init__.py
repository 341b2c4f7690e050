"""The API server: a client with a deadline per call, reflectors, the Lease, Events, kopf. No decisions are made here."""
