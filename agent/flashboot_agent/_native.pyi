"""The host's hot loops in C++ (csrc/). All release the GIL and take any contiguous buffer.

Deadlines are seconds. `StreamBroken` and `StreamTimeout` become ParentUnreachable and DeadlineExceeded in
transport/channel.py; `StreamTorn` becomes TornFrame.
"""

from typing import Any, Final, Literal, TypeVar

from typing_extensions import Buffer

_T = TypeVar("_T")

# Digests (csrc/digest.hpp)

def xxh3_64(data: Buffer) -> int:
    """Plain xxh3-64 of the buffer."""

def chunk_digest(data: Buffer) -> int:
    """xxh3-64 over the little-endian xxh3-64 values of the buffer's 4 KiB leaves (the last may be shorter)."""

def chunk_digests(data: Buffer, chunk_bytes: int, threads: int) -> bytes:
    """`chunk_digest` of every `chunk_bytes` of the buffer, 8 bytes little-endian each.

    Raises ValueError when chunk_bytes is not a positive multiple of 4096 or threads is below 1."""

# Streams (csrc/stream.hpp)

class StreamBroken(Exception):
    """The connection broke or was closed, on either side; says during what."""

class StreamTimeout(Exception):
    """An operation did not end within its deadline."""

class StreamTorn(Exception):
    """The peer's bytes make no frame of this protocol."""

class TlsRefused(Exception):
    """The peer's certificate, protocol version or name is not what it must be; says which."""

class TlsContext:
    """TLS 1.3 only, both sides show a certificate of the CA. Immutable; a rotation makes a new one.

    Raises ValueError that names the part (certificate, key, CA) which can't be used."""

    def __init__(self, certificate: bytes, key: bytes, ca: bytes, *, server: bool) -> None: ...

class Stream:
    """A connected TCP or unix stream socket, plain until `start_tls`. Takes the descriptor over, makes it non-blocking.

    Reading and writing belong to one thread at a time; `close` may come from any, wakes whoever waits, and the
    descriptor's number is given back only when nobody uses it. `label` is how messages call the peer. Interrupted and
    partial system calls are hidden; SIGPIPE is never raised."""

    label: str
    def __init__(self, fd: int, label: str) -> None: ...
    def start_tls(self, context: TlsContext, expected_uri: str | None, seconds: float) -> None:
        """Handshake. `expected_uri`: this URI SAN must be in the peer's certificate. Raises TlsRefused,
        StreamTimeout, StreamBroken."""
    @property
    def peer_uris(self) -> list[str]:
        """URI SANs of the peer's verified certificate; empty on a plain stream."""
    @property
    def tls(self) -> str | None:
        """Protocol and cipher, such as "TLSv1.3 TLS_AES_128_GCM_SHA256"; None on a plain stream."""
    @property
    def closed(self) -> bool: ...
    def recv_into(self, buffer: Buffer, silence: float, whole: float, what: str) -> int:
        """Fill the whole buffer and return its length, or return 0 when the stream ended before its first byte.
        `silence`: most seconds without a byte; `whole`: most seconds in all. Raises StreamTimeout, StreamBroken (also
        when the stream ends inside the buffer)."""
    def send(self, head: Buffer, tail: Buffer, silence: float, whole: float, what: str) -> None:
        """Send both completely, without a copy of ours (plain streams)."""
    def peer_is_gone(self) -> bool:
        """Whether the peer ended or reset the connection, as far as is known without waiting."""
    def finish(self, patience: float) -> None:
        """End our direction, read and drop what still comes for at most `patience` seconds, close."""
    def close(self) -> None: ...

# Marks (csrc/marks.hpp)

class MarksClosed(Exception):
    """The arena goes; whoever waited for its bytes is told."""

BYTES_IN: Final = 2
BYTES_OUT: Final = 3
REFETCHED: Final = 4
"""The counters of `Marks`: chunks that were fetched again."""

class Marks:
    """How far each lane of an arena got, and its byte counters. Lives in the first page of the arena's record (words of
    eight bytes, native order, each written in one aligned store, from byte 64 on), so that a new process goes on where
    the old one was killed. Thread-safe.

    Words: 0 verified and 1 received of lane 0, 2 bytes in, 3 bytes out, 4 chunks fetched again, 8 + 2(i-1) verified and
    9 + 2(i-1) received of lane i. Verified and received are absolute offsets inside the lane's bounds (the start of the
    lane when there is nothing; a word of 0 counts as that).

    Raises ValueError when a word is outside its lane's bounds, or received below verified."""

    def __init__(self, record_fd: int, nbytes: int, bounds: list[tuple[int, int]]) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def bounds(self, lane: int) -> tuple[int, int]:
        """[start, end) of the lane."""
    def verified(self, lane: int) -> int:
        """Absolute offset up to which the lane is verified."""
    def received(self, lane: int) -> int: ...
    def set_verified(self, lane: int, offset: int) -> None:
        """Raise it and wake waiters. Raises ValueError when it would fall or leave the lane."""
    def set_received(self, lane: int, offset: int) -> None:
        """May fall, down to `verified`: a chunk that was wrong is received again."""
    def fill(self) -> None:
        """All lanes are verified and received to their ends: a seed was committed."""
    @property
    def total_verified(self) -> int:
        """Bytes, over all lanes."""
    def valid_end(self, offset: int) -> int:
        """End of the run of verified bytes that begins at `offset`, through neighbouring lanes; `offset` when none."""
    def wait_valid(self, offset: int, end: int, seconds: float) -> int:
        """`valid_end(offset)` as soon as it is >= `end`, or whatever it is after `seconds`. Raises MarksClosed."""
    def add(self, counter: Literal[2, 3, 4], value: int) -> int: ...
    def counter(self, counter: Literal[2, 3, 4]) -> int: ...
    @property
    def generation(self) -> int:
        """Rises whenever anything here changes; to look for news cheaply."""
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Wake all waiters with MarksClosed; unmap when the last user is gone. Idempotent."""

# The hot loops of the chunk protocol (csrc/puller.hpp, csrc/server.hpp, csrc/copier.hpp)

class EgressBucket:
    """A token bucket in bytes a second that several `serve` calls share; `rate` 0 means no cap. Thread-safe."""

    def __init__(self, rate: int) -> None: ...
    rate: int
    def take(self, bytes: int) -> float:
        """Take them and return 0, or take nothing and return the seconds after which to ask again (at most 0.1)."""

class Served:
    """What one child took; may be read while `serve` runs."""

    def __init__(self) -> None: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def last_byte_age(self) -> float:
        """Seconds since bytes last left towards it."""

def serve(
    stream: Stream,
    marks: Marks,
    memory: Buffer,
    served: Served,
    buckets: list[EgressBucket],
    *,
    idle: float,
    silence: float,
    reply: float,
    nice: int,
) -> None:
    """Answer Pull frames until the child ends the connection. After an empty reply to the Pull at offset o, all Pulls
    beyond o are answered empty (go-back) until one at or before o, so that replies are always in order.

    Raises StreamTorn on anything but a valid Pull inside the arena, StreamTimeout (idle for `idle` seconds, no byte
    taken for `silence`, a reply not taken in `reply`), StreamBroken, MarksClosed (between two replies: the caller tells
    the child). `nice` above the thread's own stays with the thread for good."""

class Advance:
    """What `advance` came to."""

    state: Literal["done", "going", "differs", "overdue", "trouble"]
    """done: the lane is verified to its end. going: time is up, call again. differs: the chunk at `offset` differs from
    its digest (received was set back to it). overdue: the parent has the bytes and does not send them in time.
    trouble: the parent sent a Trouble frame, its body is in `trouble`."""
    offset: int
    parent_end: int
    """End of the parent's valid run, as of its last reply."""
    starved: bool
    """The last reply was empty: the parent has no byte that we lack."""
    bytes_in: int
    """Bytes that arrived during this call."""
    silent_seconds: float
    """Since the last byte arrived, or since the first call."""
    trouble: bytes

class LanePuller:
    """Pulls one lane over one stream: at least two Pulls in flight, bytes straight into the arena, each digest chunk
    checked as soon as it is complete, while it is in cache. Starts at the lane's `received`, at any byte.

    Keeps its place between two `advance` calls (inside a frame, too). Not thread-safe. `marks.received` counts bytes
    inside a chunk, so that another parent goes on at the very byte."""

    def __init__(
        self,
        stream: Stream,
        marks: Marks,
        lane: int,
        memory: Buffer,
        digests: bytes,
        *,
        request_bytes: int,
        in_flight: int,
        poll: float,
        silence: float,
        overdue_floor: float,
        nice: int,
    ) -> None: ...
    def advance(self, seconds: float) -> Advance:
        """Work for at most `seconds` (plus the digest of a chunk). Deadline of a deliverable request:
        max(4 x smoothed chunk time, overdue_floor). Raises StreamTorn, StreamTimeout (no word at all from the parent
        for `silence` seconds beyond its long poll), StreamBroken, MarksClosed."""

class LaneCopier:
    """The same for a parent whose memory is mapped here: waits for its verified bytes, copies with `threads`, checks
    each digest chunk while it is in cache."""

    def __init__(
        self,
        source: Marks,
        source_memory: Buffer,
        marks: Marks,
        lane: int,
        memory: Buffer,
        digests: bytes,
        *,
        threads: int,
        nice: int,
    ) -> None: ...
    def advance(self, seconds: float) -> Advance: ...

# FlashLoad (csrc/bulk_read.hpp)

class BulkProgress:
    """Bytes that arrived so far, and a way to stop; may be used from any thread."""

    def __init__(self) -> None: ...
    @property
    def done(self) -> int: ...
    def cancel(self) -> None: ...

class BulkError(Exception):
    """(file index, file offset, message): a read failed, or the file ended before the extent did."""

class BulkCancelled(Exception): ...

def bulk_read(
    files: list[int],
    extents: Buffer,
    memory: Buffer,
    *,
    threads: int,
    direct: bool,
    digest_chunk: int,
    progress: BulkProgress,
    nice: int,
) -> bytes:
    """Read extents of files into memory with preadv, each byte once, no copy of ours on the buffered path.

    `extents` is an array of 4 native u64 per extent: file index, file offset, memory offset, length; sorted by memory
    offset, not overlapping. Bytes of memory between extents are set to zero. `direct`: the descriptors were opened
    O_DIRECT; unaligned ends go through an aligned scratch buffer. Returns the digest table (8 bytes per `digest_chunk`
    of memory, computed by the thread that read it while it is in cache), or b"" when digest_chunk is 0.

    Raises BulkError, BulkCancelled, ValueError for extents that are unsorted, overlap or leave the memory."""

# Checkpoints (csrc/safetensors.hpp, csrc/checkpoint.hpp)

class Malformed(Exception):
    """No sound header or index; the message is ASCII and wants "FILE: " before it."""

class Truncated(Exception):
    """The file ends before what its header speaks of; the message wants "FILE " before it."""

class SafetensorsHeader:
    """A sound header as columns; `text` is all of it, of a file of `file_bytes`.

    Raises Truncated, Malformed; ValueError when the file is too short for the header."""

    def __init__(self, text: Buffer, file_bytes: int) -> None: ...
    def __len__(self) -> int:
        """Number of tensors."""
    @property
    def data_start(self) -> int:
        """Offset in the file of the first tensor's first byte."""
    @property
    def data_bytes(self) -> int: ...
    def tensors(self) -> list[tuple[int, int, str, str, tuple[int, ...]]]:
        """Begin and end (bytes from data_start), name, dtype, shape; in the order of their bytes."""

class WeightMap:
    """The index of a checkpoint: which tensor is in which file. Raises Malformed."""

    def __init__(self, text: Buffer) -> None: ...
    @property
    def files(self) -> list[str]:
        """Sorted relative paths that stay inside the folder."""
    def absent(self, file: int, header: SafetensorsHeader) -> str | None:
        """A tensor (shown for a message) that is placed in this file, and that its header does not have."""

class CheckpointLayout:
    """The tensors of all headers, in order, each at a multiple of TENSOR_ALIGNMENT bytes."""

    def __init__(self, headers: list[SafetensorsHeader]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def twice(self) -> tuple[str, int, int] | None:
        """A tensor (shown for a message) that two headers have, and which two."""
    def extents(self) -> bytes:
        """For `bulk_read`; the files are numbered as the headers."""
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int, int, int]]:
        """Name, dtype, shape, memory offset, bytes, file, file offset."""
    def at(self, file: int, file_offset: int) -> tuple[str, str, tuple[int, ...], int, int, int, int] | None:
        """The tensor that has this byte of a file."""

DTYPE_BITS: Final[dict[str, int]]
"""dtype of safetensors → bits of one element."""
TENSOR_ALIGNMENT: Final[int]

SERVE_LIMIT: Final[int]
"""MAX_PULL of wire/frames.py, as compiled in; a test compares them."""
DIGEST_CHUNK: Final[int]
"""DIGEST_CHUNK_BYTES of core/digest.py, as compiled in; a test compares them."""

# The codec of deltas (csrc/delta_*.hpp, docs/reference/delta-format.md)

DELTA_WORD_BYTES: Final[tuple[int, ...]]
"""By the number of a format of words."""
DELTA_KERNEL: Final[str]
"""Which loops this machine uses: avx2, neon or scalar."""

class DeltaBroken(Exception):
    """(fault, chunk of the arena, message); fault is "malformed", "base" or "result"."""

def delta_encode(
    base: Buffer, next: Buffer, offset: int, runs: Buffer, classes: int, out: Buffer, *, threads: int
) -> bytes:
    """Encode the chunks of an arena from byte `offset` (at a chunk) on. Releases the GIL.

    `runs` has rows of two native u64: end in the arena, format of words. `out` has a place of DIGEST_CHUNK bytes for
    each chunk. Returns rows of five native u64 a chunk: mode (0 same, 1 sparse, 2 raw), bytes of the body at the
    beginning of its place (a raw chunk's body is `next` and was not copied), digest of base, digest of result, elements
    changed.

    Raises ValueError for runs that are no whole words in order or do not cover the bytes, other sizes, classes."""

class DeltaWindow:
    """Located changes of some chunks: nothing is written until `write`. `base` is the arena's bytes from `offset` on,
    `bodies` are one behind the other, and are looked at for as long as this lives. Releases the GIL.

    Raises DeltaBroken ("base", "malformed"), ValueError for bodies and rows that do not fit."""

    def __init__(
        self, base: Buffer, offset: int, runs: Buffer, rows: Buffer, bodies: Buffer, *, reverse: bool, threads: int
    ) -> None:
        """`rows` as `delta_encode` gives them. `reverse`: make the way back, too."""
    def write(self, memory: Buffer, *, threads: int) -> None:
        """Into memory that has the base's bytes; all chunks have their result's digest afterwards, or all are as they
        were. Raises DeltaBroken ("result")."""
    def restore(self, memory: Buffer) -> None:
        """Put back what `write` changed."""
    @property
    def changed(self) -> int:
        """Elements."""
    def reverse(self) -> tuple[bytes, bytes]:
        """Rows and bodies of the chunks of the reverse delta."""
    def journal(self) -> bytes:
        """What `write` will change, as it is now, for `delta_put_back`."""

def strided_copy(target: Buffer, source: Buffer, to: int, from_: int, width: int, loops: Buffer) -> None:
    """Copy pieces of `width` bytes: the first from byte `from_` to byte `to`, the others as nested loops say.

    loops: count, step in the source, step in the target (i64 each), the outermost first. Raises ValueError, nothing
    written, for what leaves one of the two."""

def delta_put_back(memory: Buffer, journal: Buffer) -> None:
    """Put back what a journal says into the whole arena, however much of it was changed since.

    Raises Malformed, nothing written, for one that is none or leaves the memory."""

# Layouts (csrc/layout_table.hpp, csrc/torch_views.hpp)

LAYOUT_DTYPES: Final[dict[str, int]]
"""Name → bytes of an element, in the order of their numbers."""
LAYOUT_ALIGNMENT: Final[int]
LAYOUT_MOST_BYTES: Final[int]
LAYOUT_MOST_DOCUMENT: Final[int]
LAYOUT_VERSION: Final[int]

def layout_parts(document: Buffer) -> tuple[bytes, bytes]:
    """Head and tables, whole and of the right checksum; all else is not looked at. Raises Malformed."""

"""Of an arena."""

class LayoutTable:
    """The tables of a layout document (docs/reference/layout.md). Immutable.

    Raises Malformed, naming column and entry, unless every index is in range, storages lie in order inside of their
    segments, tensors inside of their storages, and places of bindings differ."""

    def __init__(self, body: Buffer, segment_ends: list[int], attribute_sets: int) -> None: ...
    @property
    def module_count(self) -> int:
        """With the root."""

    @property
    def all_in_place(self) -> bool:
        """Whether every tensor has bytes, and they are the arena's own: on storages that are shared."""

    def modules(self) -> list[str]:
        """Paths, the root's first."""

    def storages(self) -> list[tuple[int, int, int]]:
        """Offset, bytes, kind."""

    def forms(self) -> list[tuple[tuple[int, ...], tuple[int, ...], str, bool, str, int]]:
        """What many tensors share: shape, stride, dtype, parameter, class, number of its set of attributes."""

    def tensors(self) -> list[tuple[int, int, int]]:
        """Storage, offset in elements, form."""

    def bindings(self) -> list[tuple[str, str, int, int]]:
        """Path of the module, attribute, kind, tensor."""

    def by_name(self, tensors: list[_T], into: dict[str, _T]) -> None:
        """An object per tensor under each of its names, into an empty dictionary.

        Raises Malformed when two names are the same."""

class Torch:
    """torch's own functions for making tensors, found at run time."""

    def __init__(self, cpu: str, python: str) -> None:
        """Paths of libtorch_cpu.so and libtorch_python.so, which are loaded. Raises RuntimeError without a function."""

    def make_views(self, table: LayoutTable, bases: list[object | None], classes: list[type | None]) -> list[Any]:
        """A tensor for each of the table; None for those that are not over the arena's own bytes (`all_in_place`).

        `bases`: by number of dtype a handle (torch._C._aoti) of a tensor of that dtype over the whole arena.
        `classes`: by number of tensor a class that is derived from torch.Tensor, or None for that; may be empty.

        Raises RuntimeError; no tensor is left then."""
