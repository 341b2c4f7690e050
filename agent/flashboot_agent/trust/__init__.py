"""Who this agent is, and whom it believes: its key and certificate, and the CA of the cluster (wire/trust.py).

What is here uses the cryptography library on small documents; the TLS of bulk bytes is the native part's.
"""
