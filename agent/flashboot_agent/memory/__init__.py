"""Device memory behind one interface (base.py): `host` is memfds that the holder keeps; what a node gives is probed."""
