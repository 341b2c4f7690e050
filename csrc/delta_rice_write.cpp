// The writing half: which parameters, and how many bits they take; heads and bits.
#include "delta_rice.hpp"

#include <algorithm>
#include <bit>

namespace flashboot {
namespace {

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

}  // namespace flashboot
