"""`make demo`: one line through everything on a real cluster, from an empty machine to a report.

Run as `python -m demo` with e2e/ and agent/ on the path. It acts as a user would: helm, kubectl, HTTP to the engines.
"""
