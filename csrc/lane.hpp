// One lane of the child's arena, as the thread that fills it sees it.
//
// What always holds: the marks never say verified of a byte that was not compared with the digest table after it landed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "digest.hpp"
#include "marks.hpp"

namespace flashboot {

class Lane {
 public:
  // `memory` is the whole arena, `digests` its table; both stay the caller's. Throws std::invalid_argument when sizes or
  // the marks don't fit digest chunks, std::out_of_range when there is no such lane.
  Lane(std::shared_ptr<Marks> marks, std::size_t lane, std::span<std::byte> memory, Bytes digests);

  [[nodiscard]] Marks& marks() const noexcept { return *marks_; }
  [[nodiscard]] std::size_t number() const noexcept { return lane_; }
  [[nodiscard]] Bounds bounds() const noexcept { return bounds_; }
  [[nodiscard]] std::uint64_t received() const noexcept { return received_; }
  [[nodiscard]] std::uint64_t verified() const noexcept { return verified_; }
  [[nodiscard]] bool done() const noexcept { return verified_ == bounds_.end; }
  // Where the byte at `received` and those after it go.
  [[nodiscard]] std::span<std::byte> space() const noexcept {
    return memory_.subspan(received_, bounds_.end - received_);
  }
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
  // The digest that the chunk of `offset` must have, and where that chunk ends.
  [[nodiscard]] std::uint64_t wanted(std::uint64_t offset) const noexcept {
    return table_entry(digests_, offset / kDigestChunk);
  }
  [[nodiscard]] std::uint64_t chunk_end(std::uint64_t offset) const noexcept;

  // The first `bytes` of `space` are there (0: look at what was there before). Gives false when a chunk differs from its
  // digest; `received` is then back at its start, and what landed behind it is forgotten. Throws MarksClosed.
  [[nodiscard]] bool landed(std::uint64_t bytes);
  // The chunk that begins at `verified` was compared by somebody else. Throws MarksClosed.
  void verified_chunk();
  // The same, and it differs.
  void differs();

 private:
  std::shared_ptr<Marks> marks_;
  std::size_t lane_;
  Bounds bounds_;
  std::span<std::byte> memory_;
  Bytes digests_;
  std::uint64_t verified_;
  std::uint64_t received_;
  ChunkDigester digester_;  // of the chunk that begins at `verified`
};

}  // namespace flashboot
