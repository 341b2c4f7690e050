"""The door: the CSI inline volume through which a pod meets the agent.

It knows which pod is there before its containers start, because kubelet says so; that starts the clone. It makes the
pod's folder and leaves at once: it speaks with nobody but kubelet, and keeps no state but the folders.
"""
