"""The agent: the node's arenas, the clones that fill them, the plug-ins that attach, and the control API."""
