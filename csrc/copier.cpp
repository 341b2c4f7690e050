#include "copier.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace flashboot {
namespace {

// Bytes that are copied before their leaves are hashed: they stay in the core's own cache in between.
constexpr std::size_t kStep = 64 << 10;
constexpr std::size_t kBatch = 4096;  // chunks; bounds what a batch remembers
constexpr Duration kLook = std::chrono::milliseconds(100);

}  // namespace

// Whole chunks from the lane's `verified` on, which several threads take one by one.
class LaneCopier::Batch {
 public:
  Batch(Lane& lane, std::span<const std::byte> source, std::uint64_t end, Time deadline)
      : lane_(lane), source_(source), start_(lane.verified()), already_(lane.received()), deadline_(deadline),
        states_(std::min(kBatch, chunk_count(end - start_, kDigestChunk))) {}

  // Gives false when a chunk differed. The caller's thread is one of `threads`.
  [[nodiscard]] bool run(std::size_t threads) {
    {
      std::vector<std::jthread> helpers;  // joined on every way out
      try {
        for (std::size_t i = 1; i < std::min(threads, states_.size()); ++i) {
          helpers.emplace_back([this] { take_chunks(); });
        }
      } catch (const std::system_error&) {
        // EAGAIN under a pids limit: the threads that did start, and this one, finish the job.
      } catch (const std::bad_alloc&) {
        // The same.
      }
      take_chunks();
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return good_;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  enum class ChunkState : std::uint8_t { kOpen, kGood, kWrong };

  // The first chunk is taken in any case, so that every call gets on.
  void take_chunks() {
    for (std::size_t i = next_++; i < states_.size(); i = next_++) {
      const std::uint64_t from = start_ + i * kDigestChunk;
      const bool good = copy(from);
      const std::lock_guard held(lock_);
      states_[i] = good ? ChunkState::kGood : ChunkState::kWrong;
      try {
        advance_lane();
      } catch (...) {  // whatever it was: it belongs to the caller, not to a thread of ours
        failure_ = std::current_exception();
        good_ = false;
      }
      if (!good_ || Clock::now() >= deadline_) {
        return;
      }
    }
  }

  // True when the chunk that landed has its digest.
  [[nodiscard]] bool copy(std::uint64_t from) {
    const std::uint64_t end = lane_.chunk_end(from);
    const auto chunk = lane_.memory().subspan(from, end - from);
    // Another way of filling the lane may have brought the first bytes of the first chunk.
    const std::uint64_t begin = std::clamp(already_, from, end);
    ChunkDigester digester;
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kStep, end - at);
      std::memcpy(lane_.memory().data() + at, source_.data() + at, bytes);
      at += bytes;
      digester.extend(chunk.first(at - from));
    }
    bytes_ += end - begin;
    return digester.finish(chunk) == lane_.wanted(from);
  }

  void advance_lane() {
    while (good_ && !failure_ && frontier_ < states_.size() && states_[frontier_] != ChunkState::kOpen) {
      if (states_[frontier_] == ChunkState::kWrong) {
        lane_.differs();
        good_ = false;
      } else {
        lane_.verified_chunk();
        frontier_ += 1;
      }
    }
  }

  Lane& lane_;  // its marks only under the lock
  std::span<const std::byte> source_;
  std::uint64_t start_;
  std::uint64_t already_;
  Time deadline_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex lock_;  // of what follows
  std::vector<ChunkState> states_;
  std::size_t frontier_ = 0;  // chunks before it are marked
  bool good_ = true;
  std::exception_ptr failure_;
};

LaneCopier::LaneCopier(std::shared_ptr<Marks> source, std::span<const std::byte> source_memory, Lane lane,
                       std::size_t threads)
    : source_(std::move(source)), source_memory_(source_memory), lane_(std::move(lane)), threads_(threads) {
  if (source_memory.size() != lane_.marks().nbytes() || source_->nbytes() != lane_.marks().nbytes()) {
    throw std::invalid_argument("the parent's arena has " + std::to_string(source_memory.size()) +
                                " bytes, its marks are of " + std::to_string(source_->nbytes()) + ", and ours of " +
                                std::to_string(lane_.marks().nbytes()));
  }
  if (threads == 0) {
    throw std::invalid_argument("threads must be at least 1");
  }
}

Advance LaneCopier::advance(Duration patience) {
  const Time began = Clock::now();
  last_byte_ = last_byte_.value_or(began);
  bytes_in_ = 0;
  Advance result;
  result.state = work(began + patience);
  result.offset = lane_.received();
  result.parent_end = parent_end_;
  result.starved = starved_;
  result.bytes_in = bytes_in_;
  result.silent_seconds = to_seconds(Clock::now() - *last_byte_);
  return result;
}

State LaneCopier::work(Time deadline) {
  if (!lane_.landed(0)) {  // what another parent brought before
    return State::kDiffers;
  }
  while (!lane_.done()) {
    const std::uint64_t wanted = lane_.chunk_end(lane_.verified());
    const Time now = Clock::now();
    parent_end_ = wait(wanted, std::min(deadline - now, kLook));
    starved_ = parent_end_ < wanted;
    if (!starved_) {
      // Whole chunks only; the lane's last may be shorter.
      const std::uint64_t end = lane_.bounds().end;
      const std::uint64_t whole = parent_end_ >= end ? end : parent_end_ / kDigestChunk * kDigestChunk;
      Batch batch(lane_, source_memory_, whole, deadline);
      const bool good = batch.run(threads_);
      last_byte_ = Clock::now();
      bytes_in_ += batch.bytes();
      lane_.marks().add(Counter::kBytesIn, batch.bytes());
      if (!good) {
        return State::kDiffers;
      }
    }
    if (Clock::now() >= deadline && !lane_.done()) {
      return State::kGoing;
    }
  }
  return State::kDone;
}

std::uint64_t LaneCopier::wait(std::uint64_t end, Duration patience) {
  if (lane_.marks().closed()) {
    throw MarksClosed("the arena was closed");
  }
  try {
    return source_->wait_valid(lane_.verified(), end, patience);
  } catch (const MarksClosed&) {
    throw MarksClosed("the parent's arena was closed");
  }
}

}  // namespace flashboot
