// The two-level digest of arena bytes (agent/flashboot_agent/core/digest.py says what it is for).
//
// What always holds: leaves are 4 KiB and never cross a chunk, so that each chunk's value can be computed alone, by any
// thread, process or device, and is the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace flashboot {

inline constexpr std::size_t kLeafBytes = 4096;

using Bytes = std::span<const std::byte>;

// Plain xxh3-64.
[[nodiscard]] std::uint64_t xxh3_64(Bytes data) noexcept;

// xxh3-64 over the little-endian xxh3-64 values of the leaves of `chunk`; the last leaf may be shorter.
[[nodiscard]] std::uint64_t chunk_digest(Bytes chunk) noexcept;

// Number of chunks of `nbytes`.
[[nodiscard]] constexpr std::size_t chunk_count(std::size_t nbytes, std::size_t chunk_bytes) noexcept {
  return nbytes / chunk_bytes + (nbytes % chunk_bytes != 0 ? 1 : 0);
}

// Writes `chunk_digest` of every `chunk_bytes` of `data` to `out`, 8 bytes little-endian each, with up to `threads`
// threads (the caller's is one of them). `out` holds chunk_count(data.size(), chunk_bytes) * 8 bytes, and `chunk_bytes`
// is a positive multiple of kLeafBytes. Throws nothing: when the system gives no more threads, fewer do the work.
void chunk_digests(Bytes data, std::size_t chunk_bytes, std::size_t threads, std::byte* out) noexcept;

}  // namespace flashboot
