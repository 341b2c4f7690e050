#include "delta_rice.hpp"

#include <algorithm>
#include <bit>

#include "errors.hpp"

namespace flashboot {
namespace {

constexpr std::uint8_t kRiceSteps = 1 << 5;
constexpr std::uint8_t kExceptions = 1 << 6;

struct Rice {
  std::uint8_t rice;
  std::uint64_t bits;
};

std::uint64_t rice_bits(const std::uint32_t* values, std::uint32_t count, unsigned rice) {
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t quotient = values[i] >> rice;
    bits += quotient < kMostQuotient ? quotient + 1 + rice : kMostQuotient + 1 + 32;
  }
  return bits;
}

// The cheapest of the three parameters around the mean's logarithm; of equals the smallest.
Rice choose_rice(const std::uint32_t* values, std::uint32_t count) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    sum += values[i];
  }
  const std::uint64_t mean = sum / count;
  const unsigned middle = mean == 0 ? 0 : static_cast<unsigned>(std::bit_width(mean)) - 1;
  Rice best{0, ~std::uint64_t{0}};
  const unsigned last = std::min(middle + 1, kMostRice);
  for (unsigned rice = middle == 0 ? 0 : std::min(middle - 1, kMostRice); rice <= last; ++rice) {
    const std::uint64_t bits = rice_bits(values, count, rice);
    if (bits < best.bits) {
      best = {static_cast<std::uint8_t>(rice), bits};
    }
  }
  return best;
}

std::byte* put_varint(std::byte* out, std::uint32_t value) {
  for (; value >= 128; value >>= 7) {
    *out++ = static_cast<std::byte>(value | 128);
  }
  *out++ = static_cast<std::byte>(value);
  return out;
}

std::size_t varint_bytes(std::uint32_t value) {
  return value == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(value)) + 6) / 7;
}

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

inline void write_bits(const ClassCode& code, const Changes& changes, BitWriter& out) {
  for (std::uint32_t i = 0; i < code.count; ++i) {
    out.put_rice(changes.gap[i], code.gap_rice);
  }
  if (code.rice_steps) {
    for (std::uint32_t i = 0; i < code.count; ++i) {
      out.put_rice(changes.step[i], code.value_rice);
    }
    return;
  }
  for (std::uint32_t i = 0; i < code.count; i += 32) {
    const unsigned many = std::min<std::uint32_t>(32, code.count - i);
    std::uint64_t signs = 0;
    for (unsigned j = 0; j < many; ++j) {
      signs |= static_cast<std::uint64_t>(changes.step[i + j] & 1) << j;
    }
    out.put(signs, many);
  }
  if (code.exceptions == 0) {
    return;
  }
  for (std::uint32_t i = 0, since = 0; i < code.count; ++i) {
    if (changes.step[i] > 1) {
      out.put_rice(i - since, code.exception_rice);
      out.put_rice((changes.step[i] >> 1) - 1, code.value_rice);
      since = i + 1;
    }
  }
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

ClassCode choose_code(const Changes& changes, std::uint32_t* scratch) {
  ClassCode code;
  code.count = changes.count;
  if (code.count == 0) {
    return code;
  }
  std::uint32_t* const gaps = scratch;
  std::uint32_t* const sizes = scratch + changes.count;
  std::uint32_t found = 0;
  for (std::uint32_t i = 0, since = 0; i < changes.count; ++i) {
    if (changes.step[i] > 1) {
      gaps[found] = i - since;
      sizes[found++] = (changes.step[i] >> 1) - 1;
      since = i + 1;
    }
  }
  const Rice gap = choose_rice(changes.gap, changes.count), all = choose_rice(changes.step, changes.count);
  Rice exception{0, 0}, size{0, 0};
  if (found != 0) {
    exception = choose_rice(gaps, found);
    size = choose_rice(sizes, found);
  }
  const std::uint64_t apart = code.count + exception.bits + size.bits;
  code.gap_rice = gap.rice;
  code.rice_steps = all.bits < apart;
  code.bits = gap.bits + std::min(all.bits, apart);
  if (code.rice_steps) {
    code.value_rice = all.rice;
  } else {
    code.exceptions = found;
    code.value_rice = size.rice;
    code.exception_rice = exception.rice;
  }
  return code;
}

std::size_t head_bytes(const ClassCode& code) {
  if (code.count == 0) {
    return 1;
  }
  const std::size_t common = varint_bytes(code.count) + 1;
  if (code.rice_steps) {
    return common + 1;
  }
  return code.exceptions == 0 ? common : common + 2 + varint_bytes(code.exceptions);
}

std::byte* write_head(const ClassCode& code, std::byte* out) {
  out = put_varint(out, code.count);
  if (code.count == 0) {
    return out;
  }
  const unsigned flags = (code.rice_steps ? kRiceSteps : 0U) | (code.exceptions != 0 ? kExceptions : 0U);
  *out++ = static_cast<std::byte>(code.gap_rice | flags);
  if (flags != 0) {
    *out++ = static_cast<std::byte>(code.value_rice);
  }
  if (code.exceptions != 0) {
    *out++ = static_cast<std::byte>(code.exception_rice);
    out = put_varint(out, code.exceptions);
  }
  return out;
}

void write_changes(const ClassCode& code, const Changes& changes, BitWriter& writer) {
  BitWriter out = writer;  // a local one stays in registers: nothing that is stored to can be a part of it
  write_bits(code, changes, out);
  writer = out;
}

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
