// FlashLoad's engine: many pieces of files into one memory, each byte once, by several threads.
//
// What always holds: files are read with preadv and never mapped, so that a file which shrinks under us is an error
// with its offset, and never a SIGBUS; a thread owns one unit of the memory at a time and computes its digests itself,
// while the bytes are in its cache; when anything is raised, no thread writes into the memory any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace flashboot {

// One piece of a file and where it goes. Bytes.
struct Extent {
  std::uint64_t file;  // index into the files
  std::uint64_t file_offset;
  std::uint64_t memory_offset;
  std::uint64_t length;
};

// May be used from any thread while a read runs.
class BulkProgress {
 public:
  [[nodiscard]] std::uint64_t done() const noexcept { return done_.load(std::memory_order_relaxed); }
  void add(std::uint64_t bytes) noexcept { done_.fetch_add(bytes, std::memory_order_relaxed); }
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> cancelled_{false};
};

// A read failed, or a file ended before its extent did.
class BulkFailure : public std::runtime_error {
 public:
  BulkFailure(std::size_t file, std::uint64_t offset, const std::string& message)
      : std::runtime_error(message), file_(file), offset_(offset) {}
  [[nodiscard]] std::size_t file() const noexcept { return file_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::size_t file_;
  std::uint64_t offset_;
};

class BulkStopped : public std::runtime_error {
 public:
  BulkStopped() : std::runtime_error("the read was cancelled") {}
};

struct BulkOptions {
  std::size_t threads = 1;
  bool direct = false;           // the descriptors were opened with O_DIRECT
  std::size_t digest_chunk = 0;  // bytes; 0: no digests
  int nice = 0;                  // of the reading threads
};

// Reads all extents, zeroes the bytes of `memory` between them, and writes the digest of every `digest_chunk` to
// `digests` (chunk_count(memory.size(), digest_chunk) * 8 bytes, little-endian). Extents are sorted by memory offset.
//
// Throws std::invalid_argument (extents unsorted, overlapping, outside the memory or the range of a file offset; no such
// file; digest_chunk not a multiple of kLeafBytes; no threads), BulkFailure, BulkStopped.
void bulk_read(std::span<const int> files, std::span<const Extent> extents, std::span<std::byte> memory,
               const BulkOptions& options, BulkProgress& progress, std::byte* digests);

}  // namespace flashboot
