// Copies of a few bytes each that lie at equal steps, as nested loops say: a transposed matrix, columns that are cut out.
// The source is read a cache line at a time even where each line has bytes for many places of the target.
//
// What always holds: nothing is read or written outside of the two spans; std::invalid_argument is thrown before the
// first byte is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace flashboot {

struct CopyLoop {
  std::uint64_t count;      // at least 1
  std::int64_t from, to;    // bytes of the source, and of the target, from one piece to the next
};

// Pieces of `width` bytes: the first from byte `from` of the source to byte `to` of the target, the others as nested
// loops say, of which the last one is the innermost.
void strided_copy(std::span<std::byte> target, std::span<const std::byte> source, std::uint64_t to, std::uint64_t from,
                  std::uint64_t width, std::span<const CopyLoop> loops);

}  // namespace flashboot
