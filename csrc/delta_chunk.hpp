// One chunk of a delta: 1 MiB of an arena on the grid of its digests, cut into pieces where the format changes.
//
// What always holds: a ChunkPatch writes only what it located in a chunk that has the base's digest, and after `write`
// the chunk has the result's digest, or is as it was before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "delta_piece.hpp"
#include "digest.hpp"

namespace flashboot {

// Bytes up to `end` (of the arena, from the end of the run before) are words of one format. Runs begin and end at whole
// words, as seen from the start of the arena, so that no word lies across two chunks.
struct WordRun {
  std::uint64_t end;
  std::uint64_t format;
};

// Throws std::invalid_argument unless the runs are in order, of known formats, and cover `nbytes`.
void check_runs(std::span<const WordRun> runs, std::uint64_t nbytes);

struct DeltaRow {
  std::uint64_t mode = 0;   // DeltaMode of the chunk
  std::uint64_t bytes = 0;  // of its body; of a raw chunk, which has none of its own, those of the chunk
  std::uint64_t base_digest = 0;
  std::uint64_t result_digest = 0;
  std::uint64_t changed = 0;  // elements
};

// The chunk that begins at byte `offset` of the arena. `out` has room for as many bytes as the chunk has; nothing is
// written there for a raw one: its body is `next`.
[[nodiscard]] DeltaRow encode_chunk(Bytes base, Bytes next, std::uint64_t offset, std::span<const WordRun> runs,
                                    unsigned classes, DeltaWorkspace& workspace, std::byte* out);

enum class DeltaFault { kMalformed, kBase, kResult };

struct DeltaBroken {
  DeltaFault fault;
  std::string what;
};

class ChunkPatch {
 public:
  // Finds out what `body` changes in `base`, and writes nothing. `body` must outlive this. Throws DeltaBroken.
  void locate(Bytes base, std::uint64_t offset, std::span<const WordRun> runs, const DeltaRow& row, Bytes body,
              DeltaWorkspace& workspace);
  // What makes the base of the result again, as a chunk of the reverse delta.
  void encode_reverse(Bytes base, DeltaWorkspace& workspace);
  [[nodiscard]] const DeltaRow& reverse_row() const { return reverse_row_; }
  [[nodiscard]] Bytes reverse() const { return reverse_; }
  // All or nothing. Throws DeltaBroken.
  void write(std::span<std::byte> chunk) const;
  // Puts back what `write` changed; also when only a part of it was written.
  void restore(std::span<std::byte> chunk) const;

  [[nodiscard]] std::size_t changed() const;
  // What `write` changes, as it is now, for put_back; `offset` of the chunk in the arena.
  void journal(std::uint64_t offset, std::vector<std::byte>& out) const;

 private:
  struct Piece {
    std::size_t begin, bytes;  // in the chunk
    Words words;
    std::size_t first, last;   // changes
    const std::byte* raw;      // of the body; nullptr: `first` to `last` say it
    std::size_t kept;          // of a raw piece: where its old bytes are in `old_raw_`
  };
  void put(std::span<std::byte> chunk, const std::vector<std::uint32_t>& words, bool old) const;

  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> at_, new_, old_;
  std::vector<std::byte> old_raw_;
  std::uint64_t base_digest_ = 0, result_digest_ = 0;
  std::vector<std::byte> reverse_;
  DeltaRow reverse_row_;
};

// Puts back what a journal says, however much of it was changed since. Throws Malformed, nothing written, for a journal
// that is none or leaves the memory.
void put_back(std::span<std::byte> arena, Bytes journal);

}  // namespace flashboot
