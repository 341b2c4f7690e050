// One thread's reading for bulk_read: runs of extents that follow each other in a file go through one system call.
//
// What always holds: only the memory that was asked for is written; a file that ends early is a BulkFailure with its
// offset; with O_DIRECT, what is not aligned goes by way of an aligned buffer of our own.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "bulk_read.hpp"

namespace flashboot {

class ExtentReader {
 public:
  // Of checked extents (bulk_read says which). `unit`: the most that `fill` is asked for.
  ExtentReader(std::span<const int> files, std::span<const Extent> extents, std::span<std::byte> memory,
               std::size_t unit, bool direct);

  // Fill memory [begin, end), one unit at most. Returns how many bytes came from files.
  std::uint64_t fill(std::size_t begin, std::size_t end);

 private:
  // Pieces of one system call; IOV_MAX is 1024. Tensors that are small enough to need more of them are few bytes.
  static constexpr std::size_t kPieces = 256;

  // A contiguous run of a file that is scattered over pieces of memory.
  struct Batch {
    std::size_t file = 0;
    std::uint64_t offset = 0;
    std::size_t length = 0;
    std::array<iovec, kPieces> pieces;
    std::size_t count = 0;
  };
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  // Tensors that follow each other in a file go through one system call, though the memory pads between them.
  void append(std::size_t file, std::uint64_t offset, std::size_t at, std::size_t length);
  void flush();
  void read_scattered();
  // Whole blocks straight to where they go when everything is aligned, as in an arena image; else by way of the buffer.
  void read_direct();
  // `length` bytes in whole blocks, of which at least `wanted` must be there: a file need not end at a block.
  void read_blocks(std::byte* to, std::uint64_t offset, std::size_t length, std::size_t wanted);
  std::size_t read_some(const iovec* pieces, std::size_t count, std::uint64_t offset);
  [[noreturn]] void ended(std::uint64_t offset) const;

  std::span<const int> files_;
  std::span<const Extent> extents_;
  std::span<std::byte> memory_;
  bool direct_;
  std::unique_ptr<std::byte, Free> scratch_;  // aligned; with `direct` only
  Batch batch_;
};

}  // namespace flashboot
