// The changes of one class as bits: choosing the parameters, writing, reading.
//
// What always holds: the parameters follow from the numbers alone (docs/reference/delta-format.md, "Choosing"), so that
// every encoder of ours gives the same bytes; a reader gives at most as many numbers as the caller has room for, gaps
// of at most `most_gap` and steps of at most `most_step` + 1, or throws Malformed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "delta_bits.hpp"

namespace flashboot {

// Of a class's head, beside the Rice parameter of its gaps.
inline constexpr std::uint8_t kRiceSteps = 1 << 5, kExceptions = 1 << 6;

struct ClassCode {
  std::uint32_t count = 0;
  std::uint32_t exceptions = 0;    // steps other than -1 and 1, of the first mode
  std::uint8_t gap_rice = 0;
  std::uint8_t value_rice = 0;
  std::uint8_t exception_rice = 0;
  bool rice_steps = false;         // the second mode: all steps as Rice codes
  std::uint64_t bits = 0;          // of gaps and steps
};

struct Changes {
  const std::uint32_t* gap;
  const std::uint32_t* step;
  std::uint32_t count;
};

// `scratch` has room for 2 x count numbers.
[[nodiscard]] ClassCode choose_code(const Changes& changes, std::uint32_t* scratch);

[[nodiscard]] std::size_t head_bytes(const ClassCode& code);
[[nodiscard]] std::byte* write_head(const ClassCode& code, std::byte* out);
void write_changes(const ClassCode& code, const Changes& changes, BitWriter& out);

// Reads at `at`, which moves; `room` is what is left for the numbers of this class.
[[nodiscard]] ClassCode read_head(const std::byte*& at, const std::byte* end, std::uint32_t room);
void read_changes(const ClassCode& code, std::uint32_t* gap, std::uint32_t* step, std::uint32_t most_gap,
                  std::uint32_t most_step, BitReader& in);

}  // namespace flashboot
