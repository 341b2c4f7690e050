// Bytes without a period of a leaf or a chunk, so that one at a wrong place shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t state) {
  std::vector<std::byte> bytes(size);
  for (std::byte& each : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    each = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}
