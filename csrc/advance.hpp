// What filling a lane for a while came to; the same for all ways of filling one (_native.pyi explains the states).
#pragma once

#include <cstdint>
#include <string>

namespace flashboot {

enum class State { kDone, kGoing, kDiffers, kOverdue, kTrouble };

struct Advance {
  State state = State::kGoing;
  std::uint64_t offset = 0;
  std::uint64_t parent_end = 0;
  bool starved = false;
  std::uint64_t bytes_in = 0;
  double silent_seconds = 0;
  std::string trouble;
};

}  // namespace flashboot
