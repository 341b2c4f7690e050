"""What the demo and the end-to-end tests share: a real cluster seen from outside, through kubectl and the API server.

Nothing in here knows whether the cluster is the rack or somebody's own: pods are reached through the API server.
"""
