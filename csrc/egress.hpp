// How much leaves towards children: a cap that several of them share, and what one of them took.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "clock.hpp"

namespace flashboot {

// A token bucket in bytes. Sending goes first and is paid after, so that any slice can be sent, and the next sender
// waits until the debt is paid.
class EgressBucket {
 public:
  // Bytes a second; 0 means no cap.
  explicit EgressBucket(std::uint64_t rate) : rate_(rate), at_(Clock::now()) {}

  [[nodiscard]] std::uint64_t rate() const;
  // Counts at once, also for those who wait.
  void set_rate(std::uint64_t rate);

  // The largest slice that keeps the cap smooth: at most 256 KiB, and at most 50 ms of it.
  [[nodiscard]] std::size_t slice() const;
  // Takes `bytes` when there is no debt and gives zero; otherwise takes nothing, and gives how long to wait before asking
  // again (at most 100 ms).
  [[nodiscard]] Duration take(std::size_t bytes);

 private:
  void refill(Time now);

  mutable std::mutex lock_;
  std::uint64_t rate_;
  double tokens_ = 0;  // below zero: debt
  Time at_;
};

// What one child took; read by other threads while it is served.
class Served {
 public:
  Served() : last_(Clock::now().time_since_epoch().count()) {}

  void add(std::uint64_t bytes) noexcept {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    last_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t bytes_out() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] Duration last_byte_age() const noexcept {
    return Clock::now().time_since_epoch() - Duration(last_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<Duration::rep> last_;
};

}  // namespace flashboot
