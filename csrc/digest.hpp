// The two-level digest of arena bytes (agent/flashboot_agent/core/digest.py says what it is for).
//
// What always holds: leaves are 4 KiB and never cross a chunk, so that each chunk's value can be computed alone, by any
// thread, process or device, and is the same everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace flashboot {

inline constexpr std::size_t kLeafBytes = 4096;
// Bytes under one entry of an arena's digest table.
inline constexpr std::size_t kDigestChunk = 1 << 20;

using Bytes = std::span<const std::byte>;

// Plain xxh3-64.
[[nodiscard]] std::uint64_t xxh3_64(Bytes data) noexcept;

// xxh3-64 over the little-endian xxh3-64 values of the leaves of `chunk`; the last leaf may be shorter.
[[nodiscard]] std::uint64_t chunk_digest(Bytes chunk) noexcept;

// Number of chunks of `nbytes`.
[[nodiscard]] constexpr std::size_t chunk_count(std::size_t nbytes, std::size_t chunk_bytes) noexcept {
  return nbytes / chunk_bytes + (nbytes % chunk_bytes != 0 ? 1 : 0);
}

// `chunk_digest` of at most kDigestChunk bytes that arrive piece by piece, each leaf hashed while it is in cache.
class ChunkDigester {
 public:
  // `so_far` is the chunk from its first byte on; leaves that are whole now and were not before are hashed.
  void extend(Bytes so_far) noexcept;
  // The digest of all of the chunk. Begins the next one.
  [[nodiscard]] std::uint64_t finish(Bytes chunk) noexcept;
  // Forget what was hashed.
  void restart() noexcept { leaves_ = 0; }

 private:
  std::size_t leaves_ = 0;
  std::array<std::byte, kDigestChunk / kLeafBytes * sizeof(std::uint64_t)> values_;  // little-endian
};

// The entry of chunk `index` in a digest table, little-endian there.
void set_table_entry(std::byte* table, std::size_t index, std::uint64_t value) noexcept;
[[nodiscard]] std::uint64_t table_entry(Bytes table, std::size_t index) noexcept;

// Writes `chunk_digest` of every `chunk_bytes` of `data` to `out`, 8 bytes little-endian each, with up to `threads`
// threads (the caller's is one of them). `out` holds chunk_count(data.size(), chunk_bytes) * 8 bytes, and `chunk_bytes`
// is a positive multiple of kLeafBytes. Throws nothing: when the system gives no more threads, fewer do the work.
void chunk_digests(Bytes data, std::size_t chunk_bytes, std::size_t threads, std::byte* out) noexcept;

}  // namespace flashboot
