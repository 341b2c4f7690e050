// Bytes like those of weights, and their next version: what tests of deltas encode.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "delta_words.hpp"

namespace flashboot {

using Data = std::vector<std::byte>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  bool one_in(std::uint32_t many) { return next() % many == 0; }

 private:
  std::uint64_t state_;
};

// Words whose exponents are spread as those of weights are, with some special ones among them.
inline Data weights(std::size_t bytes, const Words& words, Random& random) {
  Data data(bytes);
  for (std::size_t at = 0; at + words.bytes <= bytes; at += words.bytes) {
    std::uint32_t word = random.next();
    if (words.mask != 0 && !random.one_in(50)) {
      const std::uint32_t middle = words.mask / 2U;
      const std::uint32_t exponent = middle - std::min<std::uint32_t>(middle, random.next() % 12 * (random.next() % 3));
      word = (word & ~(static_cast<std::uint32_t>(words.mask) << words.shift)) | exponent << words.shift;
    }
    store_word(data.data() + at, words.bytes, word);
  }
  return data;
}

// One of `in` words changes, mostly by one step.
inline Data changed(const Data& base, const Words& words, std::uint32_t in, Random& random) {
  Data data = base;
  for (std::size_t at = 0; in != 0 && at + words.bytes <= data.size(); at += words.bytes) {
    if (random.one_in(in)) {
      const std::uint32_t old = load_word(data.data() + at, words.bytes);
      const std::uint32_t step = random.one_in(10) ? random.next() & (word_mask(words) - 1) : random.next() % 2;
      store_word(data.data() + at, words.bytes, stepped(old, step, words));
    }
  }
  return data;
}

}  // namespace flashboot
