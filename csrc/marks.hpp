// How far each lane of an arena got, in shared words that outlive the process (_native.pyi tells where each word is).
//
// What always holds: a lane's bounds contain verified <= received; verified never falls; each word is written in one
// aligned store, so that a kill leaves a value that was true. All writers are in this process, but another may read.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "clock.hpp"

namespace flashboot {

struct Bounds {
  std::uint64_t start;
  std::uint64_t end;
};

// The counters beside the lanes' words, by their word.
enum class Counter : std::size_t { kBytesIn = 2, kBytesOut = 3, kRefetched = 4 };

class Marks {
 public:
  // Maps the first page of `record_fd`, which stays the caller's. `lanes` cover [0, nbytes) without gaps, in order.
  // Throws std::invalid_argument when they don't or the words are outside of them, std::system_error.
  Marks(int record_fd, std::uint64_t nbytes, std::vector<Bounds> lanes);
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] std::size_t lanes() const noexcept { return lanes_.size(); }
  // These throw std::out_of_range for a lane that is not there.
  [[nodiscard]] Bounds bounds(std::size_t lane) const { return lanes_.at(lane); }
  [[nodiscard]] std::uint64_t verified(std::size_t lane) const;
  [[nodiscard]] std::uint64_t received(std::size_t lane) const;

  // These throw std::invalid_argument when a mark would break what always holds, MarksClosed after `close`.
  void set_verified(std::size_t lane, std::uint64_t offset);
  void set_received(std::size_t lane, std::uint64_t offset);
  void fill();

  [[nodiscard]] std::uint64_t total_verified() const;
  // End of the run of verified bytes that begins at `offset`; `offset` itself when there is none.
  [[nodiscard]] std::uint64_t valid_end(std::uint64_t offset) const;
  // As soon as that is >= `end`, or whatever it is after `patience`. Throws MarksClosed.
  std::uint64_t wait_valid(std::uint64_t offset, std::uint64_t end, Duration patience);

  // Gives the new value.
  std::uint64_t add(Counter counter, std::uint64_t value);
  [[nodiscard]] std::uint64_t counter(Counter counter) const;
  // Rises with every change.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  // Wakes all waiters; the page stays mapped until this object goes, which its users keep.
  void close() noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::size_t index) const noexcept;
  [[nodiscard]] std::uint64_t mark(std::size_t lane, std::size_t which) const;
  void raise_verified(std::size_t lane, std::uint64_t offset);
  void check_open() const;
  void changed(bool wake) noexcept;

  std::uint64_t nbytes_;
  std::vector<Bounds> lanes_;
  std::byte* page_ = nullptr;
  std::mutex lock_;  // of writers, and of waiters between their look and their sleep
  std::condition_variable news_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace flashboot
