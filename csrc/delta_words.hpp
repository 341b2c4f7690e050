// The words that a delta speaks of: their sizes, exponents, and steps between them (docs/reference/delta-format.md).
//
// What always holds: everything is exact for every bit pattern. A step is a difference modulo the word's size between
// two different words that were put in order, so that neighbours in value are neighbours in number; -0 and +0 are one
// step apart, and NaNs keep their payloads. All functions are static: the files that are compiled for AVX2 have their
// own copies (xxh3_avx2.cpp says why).
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashboot {

struct Words {
  std::uint8_t bytes;
  std::uint8_t shift;  // of the exponent
  std::uint8_t mask;   // of the exponent after the shift; 0: no exponent, all elements are of one class
  bool floating;       // sign and magnitude rather than two's complement
};

// By their numbers in the format.
inline constexpr Words kWordFormats[] = {
    {1, 0, 0, false},      // 0 bytes, and whatever else has no better one
    {2, 0, 0, false},      // 1 16-bit integers
    {4, 0, 0, false},      // 2 32-bit integers
    {2, 7, 0xff, true},    // 3 bfloat16
    {2, 10, 0x1f, true},   // 4 float16
    {4, 23, 0xff, true},   // 5 float32
    {1, 3, 0x0f, true},    // 6 float8 e4m3
    {1, 2, 0x1f, true},    // 7 float8 e5m2
};
inline constexpr std::size_t kWordFormatCount = sizeof(kWordFormats) / sizeof(kWordFormats[0]);
inline constexpr unsigned kMostClasses = 16;

static inline std::uint32_t load_word(const std::byte* at, std::size_t bytes) {
  if (bytes == 2) {
    std::uint16_t word;
    __builtin_memcpy(&word, at, 2);
    return word;
  }
  if (bytes == 4) {
    std::uint32_t word;
    __builtin_memcpy(&word, at, 4);
    return word;
  }
  return static_cast<std::uint8_t>(*at);
}

static inline void store_word(std::byte* at, std::size_t bytes, std::uint32_t word) {
  if (bytes == 2) {
    const auto narrow = static_cast<std::uint16_t>(word);
    __builtin_memcpy(at, &narrow, 2);
  } else if (bytes == 4) {
    __builtin_memcpy(at, &word, 4);
  } else {
    *at = static_cast<std::byte>(word);
  }
}

// Its own inverse.
static inline std::uint32_t in_order(std::uint32_t word, const Words& words) {
  const std::uint32_t top = 1U << (8 * words.bytes - 1);
  return words.floating && (word & top) != 0 ? word ^ (top - 1) : word;
}

static inline std::uint32_t word_mask(const Words& words) { return 0xffffffffU >> (32 - 8 * words.bytes); }

// Steps of -1, 1, -2, 2, … are 0, 1, 2, 3, …; the largest is word_mask - 1. `from` and `to` differ.
static inline std::uint32_t step_between(std::uint32_t from, std::uint32_t to, const Words& words) {
  const std::uint32_t mask = word_mask(words);
  const std::uint32_t difference = (in_order(to, words) - in_order(from, words)) & mask;
  const bool negative = (difference >> (8 * words.bytes - 1) & 1) != 0;
  return negative ? (~difference & mask) << 1 : ((difference << 1) - 1) & mask;
}

static inline std::uint32_t stepped(std::uint32_t from, std::uint32_t step, const Words& words) {
  const std::uint32_t difference = (step & 1) != 0 ? (step >> 1) + 1 : ~(step >> 1);
  return in_order((in_order(from, words) + difference) & word_mask(words), words);
}

static inline std::uint32_t exponent_of(std::uint32_t word, const Words& words) {
  return word >> words.shift & words.mask;
}

}  // namespace flashboot
