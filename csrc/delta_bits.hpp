// Bits of a delta's bodies, the lowest first, and Rice codes of them (docs/reference/delta-format.md).
//
// What always holds: a reader never looks behind its end. What is missing there reads as zeros, and `overrun` tells.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace flashboot {

inline constexpr unsigned kMostQuotient = 23;  // from there on an escape, and the number itself in 32 bits
inline constexpr unsigned kMostRice = 27;      // so that quotient and rest together stay below 2^32

static_assert(std::endian::native == std::endian::little, "words of arenas are little-endian");

class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : out_(out) {}

  // The lowest `count` bits, 0 to 32; the others are zero.
  void put(std::uint64_t value, unsigned count) {
    bits_ |= value << held_;
    held_ += count;
    if (held_ >= 32) {
      const auto word = static_cast<std::uint32_t>(bits_);
      std::memcpy(out_, &word, 4);
      out_ += 4;
      bits_ >>= 32;
      held_ -= 32;
    }
  }
  void put_rice(std::uint32_t value, unsigned rice) {
    const std::uint32_t quotient = value >> rice;
    if (quotient < kMostQuotient) {
      put(std::uint64_t{1} << quotient, quotient + 1);
      put(value & ((std::uint32_t{1} << rice) - 1), rice);
    } else {
      put(std::uint64_t{1} << kMostQuotient, kMostQuotient + 1);
      put(value, 32);
    }
  }
  // Zeros up to a whole byte; where the next byte comes.
  std::byte* finish() {
    for (; held_ > 0; held_ -= held_ < 8 ? held_ : 8) {
      *out_++ = static_cast<std::byte>(bits_);
      bits_ >>= 8;
    }
    return out_;
  }

 private:
  std::byte* out_;
  std::uint64_t bits_ = 0;
  unsigned held_ = 0;
};

class BitReader {
 public:
  BitReader(const std::byte* at, const std::byte* end) : at_(at), end_(end) {}

  std::uint32_t take_rice(unsigned rice) {
    refill();
    const auto quotient = static_cast<unsigned>(std::countr_zero(bits_ | std::uint64_t{1} << kMostQuotient));
    drop(quotient + 1);
    if (quotient < kMostQuotient) [[likely]] {
      const auto rest = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << rice) - 1));
      drop(rice);
      return quotient << rice | rest;
    }
    return take32();
  }
  // `count` bits, 1 to 32.
  std::uint32_t take(unsigned count) {
    refill();
    const auto value = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << count) - 1));
    drop(count);
    return value;
  }
  // Whether more bits were taken than there are.
  [[nodiscard]] bool overrun() const { return missing_ * 8 > held_; }
  // Behind the byte of the last bit that was taken; only without an overrun. The bits left in that byte are in `rest`.
  [[nodiscard]] const std::byte* finish(std::uint64_t& rest) const {
    const unsigned whole = (held_ - missing_ * 8) / 8;
    rest = bits_ & ((std::uint64_t{1} << (held_ - missing_ * 8) % 8) - 1);
    return at_ - whole;
  }

 private:
  void drop(unsigned count) {
    bits_ >>= count;
    held_ -= count;
  }
  std::uint32_t take32() {
    const auto value = static_cast<std::uint32_t>(bits_);
    drop(32);
    return value;
  }
  // At least 56 bits are held afterwards: an escape takes 24 and 32.
  void refill() {
    if (end_ - at_ >= 8) [[likely]] {
      std::uint64_t next;
      std::memcpy(&next, at_, 8);
      bits_ |= next << held_;
      at_ += (63 - held_) >> 3;
      held_ |= 56;
      return;
    }
    for (; held_ < 56; held_ += 8) {
      if (at_ != end_) {
        bits_ |= static_cast<std::uint64_t>(*at_++) << held_;
      } else {
        missing_ += missing_ < 1U << 20 ? 1 : 0;  // enough to be an overrun for good
      }
    }
  }

  const std::byte* at_;
  const std::byte* end_;
  std::uint64_t bits_ = 0;
  unsigned held_ = 0;
  unsigned missing_ = 0;  // bytes of zeros that were made up
};

}  // namespace flashboot
