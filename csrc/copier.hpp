// Fills a lane from a parent whose memory is mapped in this process: waits for its marks, copies, checks.
//
// What always holds: only bytes below the parent's marks are read; the digest is of the bytes that landed; the lane's
// marks rise in order, whichever thread finishes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "advance.hpp"
#include "clock.hpp"
#include "lane.hpp"
#include "marks.hpp"

namespace flashboot {

class LaneCopier {
 public:
  // `source_memory` is the parent's arena. Throws std::invalid_argument when it has another size, or for no threads.
  LaneCopier(std::shared_ptr<Marks> source, std::span<const std::byte> source_memory, Lane lane, std::size_t threads);

  // Works for at most `patience`, plus a chunk for each thread. Throws MarksClosed when either arena goes.
  [[nodiscard]] Advance advance(Duration patience);

 private:
  class Batch;

  [[nodiscard]] State work(Time deadline);
  [[nodiscard]] std::uint64_t wait(std::uint64_t end, Duration patience);

  std::shared_ptr<Marks> source_;
  std::span<const std::byte> source_memory_;
  Lane lane_;
  std::size_t threads_;
  std::uint64_t parent_end_ = 0;
  bool starved_ = false;
  std::uint64_t bytes_in_ = 0;
  std::optional<Time> last_byte_;
};

}  // namespace flashboot
