// Some neighbouring chunks at once, by several threads: what a caller holds in memory while it goes through an arena.
//
// What always holds: every chunk's result is the same for any number of threads; of several broken chunks the first is
// told; `write` leaves all chunks changed or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "delta_chunk.hpp"

namespace flashboot {

// Of one chunk of an arena.
struct DeltaChunkBroken {
  std::uint64_t chunk;
  DeltaBroken broken;
};

// `base` and `next` are the arena's bytes from `offset` on, which is on the grid. `out` has a place of kDigestChunk
// bytes for each chunk.
[[nodiscard]] std::vector<DeltaRow> encode_window(Bytes base, Bytes next, std::uint64_t offset,
                                                  std::span<const WordRun> runs, unsigned classes, std::size_t threads,
                                                  std::byte* out);

class DeltaWindow {
 public:
  // Locates everything; `bodies` are one behind the other and must
  // outlive this. `reverse` also makes the way back. Throws DeltaChunkBroken; std::invalid_argument for bodies that are
  // not as long as the rows say.
  DeltaWindow(Bytes base, std::uint64_t offset, std::span<const WordRun> runs, std::span<const DeltaRow> rows,
              Bytes bodies, bool reverse, std::size_t threads);
  [[nodiscard]] const std::vector<ChunkPatch>& patches() const { return patches_; }
  // Into memory that has the base's bytes. Throws DeltaChunkBroken.
  void write(std::span<std::byte> memory, std::size_t threads) const;
  // Puts back what `write` changed, whatever of it was done.
  void restore(std::span<std::byte> memory) const;
  // For put_back: what `write` will change, as it is now.
  [[nodiscard]] std::vector<std::byte> journal() const;

 private:

  std::uint64_t offset_;
  std::size_t nbytes_;
  std::vector<ChunkPatch> patches_;
};

}  // namespace flashboot
