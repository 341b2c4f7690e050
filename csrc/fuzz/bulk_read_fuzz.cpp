// Any extents over two small files: bulk_read either refuses exactly those that its contract refuses, or leaves exactly
// the bytes and digests that a slow reading of the contract gives.
#include "bulk_read.hpp"

#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "digest.hpp"
#include "pattern.hpp"
#include "require.hpp"

namespace {

using namespace flashboot;

constexpr std::size_t kUnit = std::size_t{1} << 20;  // what a thread fills at a time, so that borders are crossed
constexpr std::size_t kMemory = 2 * kUnit + 4 * kLeafBytes;
constexpr std::uint64_t kOffsetLimit = std::numeric_limits<std::int64_t>::max();

// Two files whose lengths are no multiple of anything, and their contents.
struct Files {
  std::array<std::vector<std::byte>, 2> contents{pattern(kMemory + 4321, 1), pattern(12345, 2)};
  std::array<int, 2> descriptors{};

  Files() {
    for (std::size_t i = 0; i < contents.size(); ++i) {
      descriptors[i] = ::memfd_create("fuzz", 0);
      require(descriptors[i] >= 0, "memfd_create");
      const auto size = static_cast<ssize_t>(contents[i].size());
      require(::write(descriptors[i], contents[i].data(), contents[i].size()) == size, "write");
    }
  }
};

// Memory that ends where the sanitizer sees it, `shift` bytes behind the begin of a page.
class Room {
 public:
  Room(std::size_t size, std::size_t shift) {
    require(::posix_memalign(&start_, kLeafBytes, size + shift) == 0, "posix_memalign");
    bytes_ = {static_cast<std::byte*>(start_) + shift, size};
    std::ranges::fill(bytes_, std::byte{0xee});
  }
  ~Room() { std::free(start_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  void* start_ = nullptr;
  std::span<std::byte> bytes_;
};

// A length or a distance: at a block's border in half of the cases.
std::uint64_t some_size(FuzzedDataProvider& input, std::uint64_t most) {
  const auto size = input.ConsumeIntegralInRange<std::uint64_t>(0, most);
  return input.ConsumeBool() ? size : size / kLeafBytes * kLeafBytes;
}

// Sorted and inside the memory in most cases, with ends that often touch; anything at all in the others.
std::vector<Extent> some_extents(FuzzedDataProvider& input, std::size_t memory, std::size_t files) {
  std::vector<Extent> extents;
  std::uint64_t at = 0;
  while (input.remaining_bytes() > 8 && extents.size() < 600) {
    if (input.ConsumeIntegralInRange(0, 30) == 0) {
      extents.push_back({input.ConsumeIntegralInRange<std::uint64_t>(0, files), input.ConsumeIntegral<std::uint64_t>(),
                         input.ConsumeIntegral<std::uint64_t>(), input.ConsumeIntegral<std::uint64_t>()});
      continue;
    }
    Extent extent{};
    extent.file = input.ConsumeIntegralInRange<std::uint64_t>(0, files - 1);
    const bool follows = input.ConsumeBool() && !extents.empty();
    extent.file_offset = follows ? extents.back().file_offset + extents.back().length : some_size(input, 16384);
    at += input.ConsumeBool() ? 0 : some_size(input, 9000);
    extent.memory_offset = at;
    const std::uint64_t room = at < memory ? memory - at : 0;
    const std::uint64_t most = input.ConsumeBool() ? room : std::min<std::uint64_t>(room, 9000);
    extent.length = some_size(input, most);
    at += extent.length;
    extents.push_back(extent);
  }
  return extents;
}

bool allowed(const std::vector<Extent>& extents, std::size_t memory, std::size_t files) {
  std::uint64_t end = 0;
  return std::all_of(extents.begin(), extents.end(), [&](const Extent& each) {
    const bool ok = each.file < files && each.file_offset <= kOffsetLimit &&
                    each.length <= kOffsetLimit - each.file_offset && each.memory_offset >= end &&
                    each.memory_offset <= memory && each.length <= memory - each.memory_offset;
    end = each.memory_offset + each.length;
    return ok;
  });
}

bool in_files(const std::vector<Extent>& extents, const Files& files) {
  return std::all_of(extents.begin(), extents.end(), [&](const Extent& each) {
    return each.length == 0 || each.file_offset + each.length <= files.contents[each.file].size();
  });
}

std::vector<std::byte> expected(const std::vector<Extent>& extents, std::size_t memory, const Files& files) {
  std::vector<std::byte> bytes(memory);
  for (const Extent& each : extents) {
    if (each.length != 0) {
      std::memcpy(bytes.data() + each.memory_offset, files.contents[each.file].data() + each.file_offset, each.length);
    }
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Files files;
  FuzzedDataProvider input(data, size);
  BulkOptions options;
  options.threads = input.ConsumeIntegralInRange<std::size_t>(1, 3);
  options.direct = input.ConsumeBool();  // memfds take any read: this is about the arithmetic
  options.digest_chunk = input.ConsumeIntegralInRange<std::size_t>(0, 3) * kLeafBytes;
  const std::size_t most = input.ConsumeIntegralInRange(0, 7) == 0 ? kMemory : 5 * kLeafBytes;  // large ones are slow
  const std::size_t shift = input.ConsumeBool() ? 0 : 1;  // whole blocks go another way when all is aligned
  const Room room(input.ConsumeIntegralInRange<std::size_t>(0, most), shift);
  const std::span<std::byte> memory = room.bytes();
  const std::vector<Extent> extents = some_extents(input, memory.size(), files.contents.size());

  const std::size_t chunks = options.digest_chunk == 0 ? 0 : chunk_count(memory.size(), options.digest_chunk);
  std::vector<std::byte> digests(chunks * 8);
  const bool valid = allowed(extents, memory.size(), files.contents.size());
  BulkProgress progress;
  try {
    bulk_read(files.descriptors, extents, memory, options, progress, digests.data());
  } catch (const std::invalid_argument&) {
    require(!valid, "extents of the contract were refused");
    return 0;
  } catch (const BulkFailure& failure) {
    require(valid && !in_files(extents, files), "a read failed though all bytes are there");
    require(failure.file() < files.contents.size(), "the failure names a file that is not there");
    return 0;
  }
  require(valid && in_files(extents, files), "extents beyond the contract or the files were read");
  require(std::ranges::equal(memory, expected(extents, memory.size(), files)), "wrong bytes");
  std::uint64_t total = 0;
  for (const Extent& each : extents) {
    total += each.length;
  }
  require(progress.done() == total, "wrong progress");
  std::vector<std::byte> table(digests.size());
  if (chunks != 0) {
    chunk_digests(memory, options.digest_chunk, 1, table.data());
  }
  require(digests == table, "wrong digests");
  return 0;
}
