// The reading half: every number is compared with what it may be before it is used.
#include "delta_rice.hpp"

#include <algorithm>

#include "errors.hpp"

namespace flashboot {
namespace {

std::uint8_t take_byte(const std::byte*& at, const std::byte* end) {
  if (at == end) {
    throw Malformed("it ends inside a class's head");
  }
  return static_cast<std::uint8_t>(*at++);
}

std::uint32_t take_varint(const std::byte*& at, const std::byte* end) {
  std::uint32_t value = 0;
  for (unsigned shift = 0; shift < 28; shift += 7) {  // four bytes: more than any chunk has elements
    const std::uint8_t byte = take_byte(at, end);
    value |= static_cast<std::uint32_t>(byte & 127) << shift;
    if (byte < 128) {
      if (byte == 0 && shift != 0) {
        throw Malformed("a number is longer than it must be");
      }
      return value;
    }
  }
  throw Malformed("a number of more than 28 bits");
}

std::uint8_t take_rice_parameter(const std::byte*& at, const std::byte* end) {
  const std::uint8_t rice = take_byte(at, end);
  if (rice > kMostRice) {
    throw Malformed("a Rice parameter above 27");
  }
  return rice;
}

inline void read_bits(const ClassCode& code, std::uint32_t* gap, std::uint32_t* step, std::uint32_t most_gap,
                      std::uint32_t most_step, BitReader& in) {
  std::uint32_t largest = 0;
  for (std::uint32_t i = 0; i < code.count; ++i) {
    gap[i] = in.take_rice(code.gap_rice);
    largest = std::max(largest, gap[i]);
  }
  if (largest > most_gap) {
    throw Malformed("a gap beyond the chunk");
  }
  if (code.rice_steps) {
    largest = 0;
    for (std::uint32_t i = 0; i < code.count; ++i) {
      step[i] = in.take_rice(code.value_rice);
      largest = std::max(largest, step[i]);
    }
    if (largest > most_step) {
      throw Malformed("a step beyond the word");
    }
  } else {
    for (std::uint32_t i = 0; i < code.count; i += 32) {
      const unsigned many = std::min<std::uint32_t>(32, code.count - i);
      const std::uint32_t signs = in.take(many);
      for (unsigned j = 0; j < many; ++j) {
        step[i + j] = signs >> j & 1;
      }
    }
    for (std::uint32_t i = 0, place = 0; i < code.exceptions; ++i, ++place) {
      const std::uint32_t further = in.take_rice(code.exception_rice), size = in.take_rice(code.value_rice);
      if (further >= code.count - place) {
        throw Malformed("an exception beyond the changes");
      }
      if (size >= most_step >> 1) {
        throw Malformed("a step beyond the word");
      }
      place += further;
      step[place] |= (size + 1) << 1;
    }
  }
  if (in.overrun()) {
    throw Malformed("it ends inside a class's bits");
  }
}

}  // namespace

ClassCode read_head(const std::byte*& at, const std::byte* end, std::uint32_t room) {
  ClassCode code;
  code.count = take_varint(at, end);
  if (code.count > room) {
    throw Malformed("more changes than elements");
  }
  if (code.count == 0) {
    return code;
  }
  const std::uint8_t flags = take_byte(at, end);
  code.gap_rice = flags & 31;
  code.rice_steps = (flags & kRiceSteps) != 0;
  const unsigned both = kRiceSteps | kExceptions;
  if (code.gap_rice > kMostRice || (flags & 128) != 0 || (flags & both) == both) {
    throw Malformed("unknown flags of a class");
  }
  if ((flags & (kRiceSteps | kExceptions)) != 0) {
    code.value_rice = take_rice_parameter(at, end);
  }
  if ((flags & kExceptions) != 0) {
    code.exception_rice = take_rice_parameter(at, end);
    code.exceptions = take_varint(at, end);
    if (code.exceptions == 0 || code.exceptions > code.count) {
      throw Malformed("more exceptions than changes, or none where there are some");
    }
  }
  return code;
}

void read_changes(const ClassCode& code, std::uint32_t* gap, std::uint32_t* step, std::uint32_t most_gap,
                  std::uint32_t most_step, BitReader& reader) {
  BitReader in = reader;
  read_bits(code, gap, step, most_gap, most_step, in);
  reader = in;
}

}  // namespace flashboot
