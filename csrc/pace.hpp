// How fast a parent answers, and when an answer is overdue.
#pragma once

#include <algorithm>
#include <optional>

#include "clock.hpp"

namespace flashboot {

// Watches the oldest request from when it is known that the parent has its bytes. Times that the child itself was away
// don't count. What a request took is smoothed; a deadline is four times that, or the floor.
class Pace {
 public:
  explicit Pace(Duration floor) : floor_(floor) {}

  // The parent has the bytes of the oldest request; the first word counts.
  void due(Time now) {
    if (!since_) {
      since_ = now;
    }
  }
  // That request is answered completely. `typical`: it was about as long as requests are.
  void answered(Time now, bool typical) {
    if (since_ && (typical || !smoothed_)) {
      const Duration took = now - *since_;
      smoothed_ = smoothed_ ? *smoothed_ + (took - *smoothed_) / 8 : took;
    }
    since_.reset();
  }
  void forget() { since_.reset(); }
  void away(Duration time) {
    if (since_) {
      *since_ += time;
    }
  }
  // When the oldest request is overdue; nothing while the parent owes none.
  [[nodiscard]] std::optional<Time> deadline() const {
    if (!since_) {
      return std::nullopt;
    }
    return *since_ + std::max(floor_, 4 * smoothed_.value_or(Duration::zero()));
  }

 private:
  Duration floor_;
  std::optional<Time> since_;
  std::optional<Duration> smoothed_;
};

}  // namespace flashboot
