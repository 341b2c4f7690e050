// Times on the monotonic clock. Python gives seconds as floats; inside, everything is a point in time or a duration.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace flashboot {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;
using Time = Clock::time_point;

// Of a number of seconds: below zero counts as zero, and more than a year as a year, so that a deadline never overflows.
// Throws std::invalid_argument for what is no number.
[[nodiscard]] inline Duration seconds(double value) {
  if (std::isnan(value)) {
    throw std::invalid_argument("a number of seconds is NaN");
  }
  constexpr double kYear = 365.0 * 86400;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::clamp(value, 0.0, kYear)));
}

[[nodiscard]] inline double to_seconds(Duration value) { return std::chrono::duration<double>(value).count(); }

}  // namespace flashboot
