// bulk_read against a slow reading of its contract, and every way in which it refuses, fails or is stopped.
#include "bulk_read.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "digest.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::byte> pattern(std::size_t size, std::uint64_t state) {
  std::vector<std::byte> bytes(size);
  for (std::byte& each : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    each = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

class TestFile {
 public:
  explicit TestFile(std::vector<std::byte> contents) : contents_(std::move(contents)) {
    const char* folder = std::getenv("TMPDIR");
    std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/bulk_read_XXXXXX";
    fd_ = ::mkstemp(path.data());
    EXPECT_GE(fd_, 0);
    direct_ = ::open(path.c_str(), O_RDONLY | O_DIRECT);  // -1 where the file system has none
    ::unlink(path.c_str());
    EXPECT_EQ(::write(fd_, contents_.data(), contents_.size()), static_cast<ssize_t>(contents_.size()));
    EXPECT_EQ(::fsync(fd_), 0);
  }
  ~TestFile() {
    ::close(fd_);
    if (direct_ >= 0) {
      ::close(direct_);
    }
  }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  TestFile(TestFile&&) = delete;
  TestFile& operator=(TestFile&&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] int direct() const { return direct_; }
  [[nodiscard]] const std::vector<std::byte>& contents() const { return contents_; }
  void truncate(std::size_t size) const { EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(size)), 0); }

 private:
  std::vector<std::byte> contents_;
  int fd_ = -1;
  int direct_ = -1;
};

// Tensors of odd sizes that follow each other in two files from byte 77 on, 64-byte aligned in memory.
struct Scattered {
  TestFile first{pattern(5 * kMiB + 4321, 1)};
  TestFile second{pattern(2 * kMiB + 99, 2)};
  std::vector<Extent> extents;
  std::vector<std::byte> expected;

  Scattered() {
    std::uint64_t at = 0;
    std::size_t size = 1;
    for (std::uint64_t file = 0; file < 2; ++file) {
      const auto& contents = file == 0 ? first.contents() : second.contents();
      for (std::uint64_t offset = 77; offset < contents.size();) {
        size = size * 31 % 170003 + 1;  // from one byte on, and now and then many that are tiny
        const std::uint64_t length = std::min<std::uint64_t>(size % 7 == 0 ? 3 : size, contents.size() - offset);
        extents.push_back({file, offset, at, length});
        expected.resize(at + length);
        std::memcpy(expected.data() + at, contents.data() + offset, length);
        offset += length;
        at = (at + length + 63) / 64 * 64;
      }
    }
    expected.resize(expected.size() + 5000);  // bytes that no extent fills
  }
};

struct Result {
  std::vector<std::byte> memory;
  std::vector<std::byte> digests;
  std::uint64_t done = 0;
};

Result read(const std::vector<int>& files, const std::vector<Extent>& extents, std::size_t size, BulkOptions options) {
  Result result;
  result.memory.assign(size, std::byte{0xee});
  result.digests.resize(options.digest_chunk == 0 ? 0 : chunk_count(size, options.digest_chunk) * 8);
  BulkProgress progress;
  bulk_read(files, extents, result.memory, options, progress, result.digests.data());
  result.done = progress.done();
  return result;
}

std::uint64_t total(const std::vector<Extent>& extents) {
  std::uint64_t sum = 0;
  for (const Extent& each : extents) {
    sum += each.length;
  }
  return sum;
}

TEST(BulkRead, ScattersAdjacentTensorsWithAnyNumberOfThreadsAndAnyChunk) {
  const Scattered all;
  for (const std::size_t threads : {1, 2, 5, 64}) {
    for (const std::size_t chunk : {std::size_t{0}, kLeafBytes, 3 * kLeafBytes, kMiB, 16 * kMiB}) {
      const Result got = read({all.first.fd(), all.second.fd()}, all.extents, all.expected.size(),
                              {.threads = threads, .digest_chunk = chunk});
      ASSERT_TRUE(got.memory == all.expected) << threads << " threads, chunks of " << chunk;
      EXPECT_EQ(got.done, total(all.extents));
      if (chunk != 0) {
        std::vector<std::byte> digests(got.digests.size());
        chunk_digests(all.expected, chunk, 1, digests.data());
        ASSERT_TRUE(got.digests == digests) << threads << " threads, chunks of " << chunk;
      }
    }
  }
}

TEST(BulkRead, ReadsPastThePageCache) {
  const Scattered all;
  if (all.first.direct() < 0) {
    GTEST_SKIP() << "this file system has no O_DIRECT";
  }
  const Result got = read({all.first.direct(), all.second.direct()}, all.extents, all.expected.size(),
                          {.threads = 2, .direct = true, .digest_chunk = kMiB});
  EXPECT_TRUE(got.memory == all.expected);
  EXPECT_EQ(got.done, total(all.extents));
}

TEST(BulkRead, ReadsAnAlignedImagePastThePageCacheUpToItsOddEnd) {
  const TestFile file(pattern(65536 + 9 * kMiB + 12345, 3));
  if (file.direct() < 0) {
    GTEST_SKIP() << "this file system has no O_DIRECT";
  }
  const std::size_t size = file.contents().size() - 65536;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::vector<int> files{file.direct()};
  const std::vector<Extent> extents{{0, 65536, 0, size}};
  BulkProgress progress;
  bulk_read(files, extents, {static_cast<std::byte*>(memory), size}, {.threads = 3, .direct = true}, progress, nullptr);
  EXPECT_EQ(std::memcmp(memory, file.contents().data() + 65536, size), 0);
  ::munmap(memory, size);
}

TEST(BulkRead, AnEmptyPlanZeroesTheMemoryAndAnEmptyMemoryIsRead) {
  EXPECT_TRUE(read({}, {}, 3 * kMiB, {.threads = 2}).memory == std::vector<std::byte>(3 * kMiB));
  EXPECT_TRUE(read({}, {}, 0, {.threads = 2, .digest_chunk = kMiB}).digests.empty());
}

TEST(BulkRead, NamesTheFileAndTheOffsetAtWhichAFileEnds) {
  for (const bool direct : {false, true}) {
    const Scattered all;
    if (direct && all.first.direct() < 0) {
      continue;
    }
    all.second.truncate(kMiB + 5);
    const std::vector<int> files = direct ? std::vector{all.first.direct(), all.second.direct()}
                                          : std::vector{all.first.fd(), all.second.fd()};
    try {
      read(files, all.extents, all.expected.size(), {.threads = 1, .direct = direct});
      FAIL() << "a file that ends early was read";
    } catch (const BulkFailure& failure) {
      EXPECT_EQ(failure.file(), 1U);
      EXPECT_EQ(failure.offset(), kMiB + 5);
      EXPECT_NE(std::string(failure.what()).find("the file ends here"), std::string::npos) << failure.what();
    }
  }
}

TEST(BulkRead, NamesTheFileWhenTheSystemRefuses) {
  const TestFile file(pattern(100, 4));
  const std::vector<Extent> extents{{0, 0, 0, 50}, {1, 7, 64, 50}};
  try {
    read({file.fd(), -1}, extents, 200, {.threads = 1});
    FAIL() << "a bad descriptor was read";
  } catch (const BulkFailure& failure) {
    EXPECT_EQ(failure.file(), 1U);
    EXPECT_EQ(failure.offset(), 7U);
  }
}

TEST(BulkRead, IsCancelledBeforeItsNextUnit) {
  const Scattered all;
  std::vector<std::byte> memory(all.expected.size());
  const std::vector<int> files{all.first.fd(), all.second.fd()};
  BulkProgress progress;
  progress.cancel();
  EXPECT_THROW(bulk_read(files, all.extents, memory, {.threads = 2}, progress, nullptr), BulkStopped);
  EXPECT_EQ(progress.done(), 0U);
}

TEST(BulkRead, RefusesExtentsThatLieAndTouchesNothing) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const TestFile file(pattern(100, 5));
  const std::vector<std::vector<Extent>> wrong{
      {{1, 0, 0, 1}},                    // no such file
      {{0, 0, 0, 101}},                  // longer than the memory
      {{0, 0, 101, 0}},                  // begins beyond the memory
      {{0, 0, 50, kMost}},               // the sum overflows
      {{0, kMost, 0, 1}},                // no file is that long
      {{0, kMost / 2, 0, 1}},            // its end is not
      {{0, 0, 0, 10}, {0, 10, 9, 10}},   // overlap
      {{0, 10, 50, 10}, {0, 0, 0, 10}},  // unsorted
  };
  for (const auto& extents : wrong) {
    std::vector<std::byte> memory(100, std::byte{0xee});
    const std::vector<int> files{file.fd()};
    BulkProgress progress;
    EXPECT_THROW(bulk_read(files, extents, memory, {}, progress, nullptr), std::invalid_argument);
    EXPECT_TRUE(memory == std::vector<std::byte>(100, std::byte{0xee}));
  }
  EXPECT_THROW(read({}, {}, 1, {.threads = 0}), std::invalid_argument);
  EXPECT_THROW(read({}, {}, 1, {.digest_chunk = 100}), std::invalid_argument);
}

TEST(BulkRead, ARefillOfResidentMemoryMakesNoPageFault) {
  const TestFile file(pattern(16 * kMiB, 6));
  std::vector<std::byte> memory(16 * kMiB, std::byte{1});
  const std::vector<int> files{file.fd()};
  const std::vector<Extent> extents{{0, 0, 0, memory.size()}};
  const auto faults = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  BulkProgress progress;
  bulk_read(files, extents, memory, {.threads = 2}, progress, nullptr);
  const long before = faults();
  bulk_read(files, extents, memory, {.threads = 2}, progress, nullptr);
  EXPECT_LT(faults() - before, 256) << "of 4096 pages; threads and their stacks take a few";
  EXPECT_TRUE(memory == file.contents());
}

TEST(BulkRead, LeavesTheCallersNiceValueAlone) {
  const TestFile file(pattern(100, 7));
  const int before = ::getpriority(PRIO_PROCESS, 0);
  read({file.fd()}, {{0, 0, 0, 100}}, 100, {.threads = 1, .nice = 19});
  EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), before);
}

}  // namespace
}  // namespace flashboot
