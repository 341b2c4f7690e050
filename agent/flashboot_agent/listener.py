"""A unix socket at a path that never refuses: bound to another name, made ready, and renamed over whatever was there.

So a client meets either the old file or a listener, whoever died before. Standard library only, and beside the layers:
the holder and the agent both listen this way.
"""

from __future__ import annotations

import contextlib
import os
import socket


def listen(folder: str | os.PathLike[str], name: str, *, mode: int, backlog: int) -> socket.socket:
    """A non-blocking SOCK_SEQPACKET listener at `folder`/`name`, its file with these permissions.

    Goes through the folder's descriptor, so that a long path does not matter. Raises OSError, and leaves nothing open.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fresh = f".{name}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=at)
            listener.bind(f"/proc/self/fd/{at}/{fresh}")
            os.chmod(f"/proc/self/fd/{at}/{fresh}", mode)
            listener.listen(backlog)
            listener.setblocking(False)
            os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)
        finally:
            os.close(at)
    except OSError:
        listener.close()
        raise
    return listener
