#include "extent_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <system_error>

namespace flashboot {
namespace {

// What O_DIRECT wants of addresses, offsets and lengths; no device in use wants more.
constexpr std::size_t kBlock = 4096;

constexpr std::size_t round_down(std::size_t value) noexcept { return value & ~(kBlock - 1); }
constexpr std::size_t round_up(std::size_t value) noexcept { return round_down(value + kBlock - 1); }

}  // namespace

void ExtentReader::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

ExtentReader::ExtentReader(std::span<const int> files, std::span<const Extent> extents, std::span<std::byte> memory,
                           std::size_t unit, bool direct)
    : files_(files), extents_(extents), memory_(memory), direct_(direct) {
  if (direct) {
    // Whole blocks around any run of a unit.
    scratch_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, round_up(unit) + 2 * kBlock)));
    if (scratch_ == nullptr) {
      throw std::bad_alloc();
    }
  }
}

std::uint64_t ExtentReader::fill(std::size_t begin, std::size_t end) {
  std::uint64_t total = 0;
  std::size_t filled = begin;
  batch_.length = batch_.count = 0;
  // The last extent that begins at or before `begin` may reach into the unit.
  auto extent = std::upper_bound(extents_.begin(), extents_.end(), begin,
                                 [](std::size_t at, const Extent& each) { return at < each.memory_offset; });
  if (extent != extents_.begin()) {
    --extent;
  }
  for (; extent != extents_.end() && extent->memory_offset < end; ++extent) {
    const std::size_t from = std::max<std::size_t>(extent->memory_offset, begin);
    const std::size_t to = std::min<std::size_t>(extent->memory_offset + extent->length, end);
    if (from >= to) {
      continue;
    }
    std::memset(memory_.data() + filled, 0, from - filled);
    append(extent->file, extent->file_offset + (from - extent->memory_offset), from, to - from);
    total += to - from;
    filled = to;
  }
  flush();
  std::memset(memory_.data() + filled, 0, end - filled);
  return total;
}

void ExtentReader::append(std::size_t file, std::uint64_t offset, std::size_t at, std::size_t length) {
  const bool follows = batch_.count != 0 && batch_.file == file && batch_.offset + batch_.length == offset;
  if (!follows || batch_.count == kPieces) {
    flush();
    batch_.file = file;
    batch_.offset = offset;
  }
  batch_.pieces[batch_.count++] = {memory_.data() + at, length};
  batch_.length += length;
}

void ExtentReader::flush() {
  if (batch_.count != 0) {
    direct_ ? read_direct() : read_scattered();
    batch_.length = batch_.count = 0;
  }
}

void ExtentReader::read_scattered() {
  iovec* piece = batch_.pieces.data();
  std::size_t count = batch_.count;
  std::uint64_t offset = batch_.offset;
  while (count != 0) {
    std::size_t got = read_some(piece, count, offset);
    if (got == 0) {
      ended(offset);
    }
    offset += got;
    while (count != 0 && got >= piece->iov_len) {
      got -= piece->iov_len;
      ++piece;
      --count;
    }
    if (count != 0) {
      piece->iov_base = static_cast<std::byte*>(piece->iov_base) + got;
      piece->iov_len -= got;
    }
  }
}

void ExtentReader::read_direct() {
  std::size_t done = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(batch_.pieces[0].iov_base);
  if (batch_.count == 1 && batch_.offset % kBlock == 0 && address % kBlock == 0) {
    done = round_down(batch_.length);
    read_blocks(static_cast<std::byte*>(batch_.pieces[0].iov_base), batch_.offset, done, done);
  }
  if (done == batch_.length) {
    return;
  }
  const std::uint64_t first = (batch_.offset + done) & ~std::uint64_t{kBlock - 1};
  const std::size_t lead = batch_.offset + done - first;
  const std::size_t wanted = lead + batch_.length - done;
  read_blocks(scratch_.get(), first, round_up(wanted), wanted);
  const std::byte* from = scratch_.get() + lead;
  std::size_t skip = done;  // only ever inside a single piece
  for (std::size_t i = 0; i < batch_.count; ++i) {
    const std::size_t length = batch_.pieces[i].iov_len - skip;
    std::memcpy(static_cast<std::byte*>(batch_.pieces[i].iov_base) + skip, from, length);
    from += length;
    skip = 0;
  }
}

void ExtentReader::read_blocks(std::byte* to, std::uint64_t offset, std::size_t length, std::size_t wanted) {
  std::size_t done = 0;
  while (done < wanted) {
    iovec piece{to + done, length - done};
    const std::size_t got = read_some(&piece, 1, offset + done);
    if (done + got >= wanted) {
      return;
    }
    if (got % kBlock != 0 || got == 0) {  // only the end of a file is not at a block
      ended(offset + done + got);
    }
    done += got;
  }
}

std::size_t ExtentReader::read_some(const iovec* pieces, std::size_t count, std::uint64_t offset) {
  while (true) {
    const ssize_t got =
        ::preadv(files_[batch_.file], pieces, static_cast<int>(count), static_cast<off_t>(offset));
    if (got >= 0) {
      return static_cast<std::size_t>(got);
    }
    if (errno != EINTR) {
      const int error = errno;
      throw BulkFailure(batch_.file, offset, std::generic_category().message(error));
    }
  }
}

void ExtentReader::ended(std::uint64_t offset) const {
  throw BulkFailure(batch_.file, offset,
                    "the file ends here; bytes up to " + std::to_string(batch_.offset + batch_.length) +
                        " were expected");
}

}  // namespace flashboot
