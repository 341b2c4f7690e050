#include "digest.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "xxh3.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace flashboot {
namespace {

constexpr std::size_t kValueBytes = sizeof(std::uint64_t);
// Leaf values that are gathered before they go into the upper level; 2 KiB of stack, whatever the size of a chunk.
constexpr std::size_t kGather = 256;

void store_little_endian(std::uint64_t value, std::byte* out) noexcept {
  if constexpr (std::endian::native == std::endian::big) {
    value = XXH_swap64(value);
  }
  std::memcpy(out, &value, kValueBytes);
}

}  // namespace

std::uint64_t xxh3_64(Bytes data) noexcept {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) {
    return xxh3_64_avx2(data.data(), data.size());
  }
#endif
  return XXH3_64bits(data.data(), data.size());
}

std::uint64_t chunk_digest(Bytes chunk) noexcept {
  std::array<std::byte, kGather * kValueBytes> values;
  const std::size_t leaves = chunk_count(chunk.size(), kLeafBytes);
  const auto gather = [&](std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t begin = (first + i) * kLeafBytes;
      const Bytes leaf = chunk.subspan(begin, std::min(kLeafBytes, chunk.size() - begin));
      store_little_endian(xxh3_64(leaf), values.data() + i * kValueBytes);
    }
  };
  if (leaves <= kGather) {  // the usual chunk of 1 MiB, and all smaller ones: no streaming state needed
    gather(0, leaves);
    return XXH3_64bits(values.data(), leaves * kValueBytes);
  }
  XXH3_state_t upper;
  XXH3_64bits_reset(&upper);
  for (std::size_t first = 0; first < leaves; first += kGather) {
    const std::size_t count = std::min(kGather, leaves - first);
    gather(first, count);
    XXH3_64bits_update(&upper, values.data(), count * kValueBytes);
  }
  return XXH3_64bits_digest(&upper);
}

void ChunkDigester::extend(Bytes so_far) noexcept {
  for (; (leaves_ + 1) * kLeafBytes <= so_far.size(); ++leaves_) {
    store_little_endian(xxh3_64(so_far.subspan(leaves_ * kLeafBytes, kLeafBytes)), values_.data() + leaves_ * kValueBytes);
  }
}

std::uint64_t ChunkDigester::finish(Bytes chunk) noexcept {
  extend(chunk);
  if (const Bytes rest = chunk.subspan(leaves_ * kLeafBytes); !rest.empty()) {
    store_little_endian(xxh3_64(rest), values_.data() + leaves_ * kValueBytes);
    leaves_ += 1;
  }
  const std::size_t bytes = leaves_ * kValueBytes;
  leaves_ = 0;
  return XXH3_64bits(values_.data(), bytes);
}

void set_table_entry(std::byte* table, std::size_t index, std::uint64_t value) noexcept {
  store_little_endian(value, table + index * kValueBytes);
}

std::uint64_t table_entry(Bytes table, std::size_t index) noexcept {
  std::uint64_t value;
  std::memcpy(&value, table.data() + index * kValueBytes, kValueBytes);
  return std::endian::native == std::endian::big ? XXH_swap64(value) : value;
}

void chunk_digests(Bytes data, std::size_t chunk_bytes, std::size_t threads, std::byte* out) noexcept {
  const std::size_t count = chunk_count(data.size(), chunk_bytes);
  std::atomic<std::size_t> next{0};
  const auto work = [&]() noexcept {
    // Chunk by chunk from a shared counter: a thread that the kernel holds up keeps one chunk back, not a share.
    for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      const std::size_t begin = i * chunk_bytes;
      const Bytes chunk = data.subspan(begin, std::min(chunk_bytes, data.size() - begin));
      set_table_entry(out, i, chunk_digest(chunk));
    }
  };
  std::vector<std::jthread> helpers;  // joined on every way out
  const std::size_t wanted = std::min(threads, count);
  try {
    for (std::size_t i = 1; i < wanted; ++i) {
      helpers.emplace_back(work);
    }
  } catch (const std::system_error&) {
    // EAGAIN under a pids limit: the threads that did start, and this one, finish the job.
  } catch (const std::bad_alloc&) {
    // The same.
  }
  work();
}

}  // namespace flashboot
