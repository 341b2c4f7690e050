// The digest against its definition, leaf by leaf, and the table for every number of threads.
#include "digest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace flashboot {
namespace {

// Bytes without a period of a leaf or a chunk, so that a leaf at a wrong place shows.
std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::byte& each : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    each = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

std::uint64_t defined_digest(Bytes chunk) {
  std::string values;
  for (std::size_t begin = 0; begin < chunk.size(); begin += kLeafBytes) {
    const Bytes leaf = chunk.subspan(begin, std::min(kLeafBytes, chunk.size() - begin));
    const std::uint64_t value = XXH3_64bits(leaf.data(), leaf.size());
    for (int shift = 0; shift < 64; shift += 8) {
      values.push_back(static_cast<char>(value >> shift));  // little-endian, whatever this machine is
    }
  }
  return XXH3_64bits(values.data(), values.size());
}

std::uint64_t little_endian(const std::byte* at) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8 | std::to_integer<std::uint64_t>(at[i]);
  }
  return value;
}

TEST(Digest, IsTheDefinedOneAroundEveryBorder) {
  const auto data = pattern(513 * kLeafBytes);
  for (const std::size_t leaves : {0, 1, 2, 255, 256, 257, 512}) {
    for (const int delta : {-1, 0, 1}) {
      const std::size_t size = leaves == 0 && delta < 0 ? 0 : leaves * kLeafBytes + delta;
      EXPECT_EQ(chunk_digest({data.data(), size}), defined_digest({data.data(), size})) << size << " bytes";
    }
  }
}

TEST(Digest, NeedsNoAlignment) {
  const auto data = pattern(3 * kLeafBytes + 8);
  for (std::size_t shift = 1; shift < 8; ++shift) {
    std::vector<std::byte> moved(data.size() + shift);
    std::memcpy(moved.data() + shift, data.data(), data.size());
    EXPECT_EQ(chunk_digest({moved.data() + shift, data.size()}), chunk_digest(data)) << "shifted by " << shift;
  }
}

TEST(DigestTable, IsTheSameForEveryNumberOfThreads) {
  constexpr std::size_t kChunk = 2 * kLeafBytes;
  const auto data = pattern(37 * kChunk + 123);
  const std::size_t count = chunk_count(data.size(), kChunk);
  ASSERT_EQ(count, 38U);
  for (const std::size_t threads : {1, 2, 3, 8, 64}) {
    std::vector<std::byte> table(count * 8);
    chunk_digests(data, kChunk, threads, table.data());
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t begin = i * kChunk;
      const Bytes chunk = Bytes(data).subspan(begin, std::min(kChunk, data.size() - begin));
      EXPECT_EQ(little_endian(table.data() + i * 8), defined_digest(chunk)) << threads << " threads, chunk " << i;
    }
  }
}

TEST(DigestTable, OfNothingIsEmpty) {
  std::byte untouched{0x5a};
  chunk_digests({}, kLeafBytes, 4, &untouched);
  EXPECT_EQ(untouched, std::byte{0x5a});
}

}  // namespace
}  // namespace flashboot
