#include "egress.hpp"

#include <algorithm>

namespace flashboot {
namespace {

constexpr std::uint64_t kLeastSlice = 4 << 10;
constexpr std::uint64_t kGreatestSlice = 256 << 10;
constexpr double kSliceSeconds = 0.05;
constexpr double kBurstSeconds = 0.02;  // what may be saved up while nobody sends; covers late wake-ups
constexpr double kLongestWait = 0.1;

}  // namespace

std::uint64_t EgressBucket::rate() const {
  const std::lock_guard held(lock_);
  return rate_;
}

void EgressBucket::set_rate(std::uint64_t rate) {
  const std::lock_guard held(lock_);
  refill(Clock::now());
  rate_ = rate;
}

std::size_t EgressBucket::slice() const {
  const std::lock_guard held(lock_);
  if (rate_ == 0) {
    return kGreatestSlice;
  }
  return std::clamp(static_cast<std::uint64_t>(static_cast<double>(rate_) * kSliceSeconds), kLeastSlice, kGreatestSlice);
}

Duration EgressBucket::take(std::size_t bytes) {
  const std::lock_guard held(lock_);
  refill(Clock::now());
  if (rate_ == 0) {
    return Duration::zero();
  }
  if (tokens_ < 0) {
    return std::max(Duration(1), seconds(std::min(kLongestWait, -tokens_ / static_cast<double>(rate_))));
  }
  tokens_ -= static_cast<double>(bytes);
  return Duration::zero();
}

void EgressBucket::refill(Time now) {
  const double rate = static_cast<double>(rate_);
  tokens_ = rate_ == 0 ? 0 : std::min(tokens_ + to_seconds(now - at_) * rate, rate * kBurstSeconds);
  at_ = now;
}

}  // namespace flashboot
