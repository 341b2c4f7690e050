#include "bulk_read.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "digest.hpp"

namespace flashboot {
namespace {

// Memory that one thread fills before it takes the next.
constexpr std::size_t kUnit = std::size_t{1} << 20;
// What is read before it is digested: it and its pages of the file are still in a core's own cache then.
constexpr std::size_t kStride = std::size_t{512} << 10;
// Of O_DIRECT reads, which wait for the device each time.
constexpr std::size_t kDirectUnit = std::size_t{8} << 20;
// What O_DIRECT wants of addresses, offsets and lengths; no device in use wants more.
constexpr std::size_t kBlock = 4096;
// Pieces of one system call; IOV_MAX is 1024. Tensors that are small enough to need more of them are few bytes.
constexpr std::size_t kPieces = 256;

constexpr std::size_t round_down(std::size_t value) noexcept { return value & ~(kBlock - 1); }
constexpr std::size_t round_up(std::size_t value) noexcept { return round_down(value + kBlock - 1); }

// A contiguous run of a file that is scattered over pieces of memory.
struct Batch {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::size_t length = 0;
  std::array<iovec, kPieces> pieces;
  std::size_t count = 0;
};

// One thread's work. Units come from a shared counter, so that a thread which the kernel holds up keeps back one unit.
class Reader {
 public:
  Reader(std::span<const int> files, std::span<const Extent> extents, std::span<std::byte> memory, std::size_t unit,
         bool direct)
      : files_(files), extents_(extents), memory_(memory), direct_(direct) {
    if (direct) {
      // Whole blocks around any run of a unit.
      scratch_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, round_up(unit) + 2 * kBlock)));
      if (scratch_ == nullptr) {
        throw std::bad_alloc();
      }
    }
  }

  // Fill memory [begin, end), one unit at most. Returns how many bytes came from files.
  std::uint64_t fill(std::size_t begin, std::size_t end) {
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

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };

  // Tensors that follow each other in a file go through one system call, though the memory pads between them.
  void append(std::size_t file, std::uint64_t offset, std::size_t at, std::size_t length) {
    const bool follows = batch_.count != 0 && batch_.file == file && batch_.offset + batch_.length == offset;
    if (!follows || batch_.count == kPieces) {
      flush();
      batch_.file = file;
      batch_.offset = offset;
    }
    batch_.pieces[batch_.count++] = {memory_.data() + at, length};
    batch_.length += length;
  }

  void flush() {
    if (batch_.count != 0) {
      direct_ ? read_direct() : read_scattered();
      batch_.length = batch_.count = 0;
    }
  }

  void read_scattered() {
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

  // Whole blocks straight to where they go when everything is aligned, as in an arena image; else by way of the scratch.
  void read_direct() {
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

  // `length` bytes in whole blocks, of which at least `wanted` must be there: a file need not end at a block.
  void read_blocks(std::byte* to, std::uint64_t offset, std::size_t length, std::size_t wanted) {
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

  std::size_t read_some(const iovec* pieces, std::size_t count, std::uint64_t offset) {
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

  [[noreturn]] void ended(std::uint64_t offset) const {
    throw BulkFailure(batch_.file, offset,
                      "the file ends here; bytes up to " + std::to_string(batch_.offset + batch_.length) +
                          " were expected");
  }

  std::span<const int> files_;
  std::span<const Extent> extents_;
  std::span<std::byte> memory_;
  bool direct_;
  std::unique_ptr<std::byte, Free> scratch_;
  Batch batch_;
};

void check(std::span<const int> files, std::span<const Extent> extents, std::size_t memory,
           const BulkOptions& options) {
  if (options.threads == 0) {
    throw std::invalid_argument("threads must be at least 1");
  }
  if (options.digest_chunk % kLeafBytes != 0) {
    throw std::invalid_argument("digest_chunk must be 0 or a multiple of 4096");
  }
  constexpr auto kFileEnd = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    const auto refuse = [i](const char* why) {
      throw std::invalid_argument("extent " + std::to_string(i) + " " + why);
    };
    if (extent.file >= files.size()) {
      refuse("names a file that is not there");
    }
    if (extent.file_offset > kFileEnd || extent.length > kFileEnd - extent.file_offset) {
      refuse("lies beyond any file's end");
    }
    if (extent.memory_offset < end) {
      refuse("begins before its predecessor's end");
    }
    if (extent.memory_offset > memory || extent.length > memory - extent.memory_offset) {
      refuse("leaves the memory");
    }
    end = extent.memory_offset + extent.length;
  }
}

// Maps the next unit at once when the last one faulted: one fault for each page costs more than the copy, and asking for
// pages that are mapped already costs as much as reading them. Only ever a hint: where the kernel does not know it
// (before 5.14) or has no memory left, the reads fault, or fail, by themselves.
class Populate {
 public:
  void unit(std::byte* begin, std::byte* end) noexcept {
#ifdef MADV_POPULATE_WRITE
    constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
    constexpr int kPopulate = 23;
#endif
    const long faults = minor_faults();
    const bool faulted = faults - faults_ > kFew;
    faults_ = faults;
    const auto first = (reinterpret_cast<std::uintptr_t>(begin) + page_ - 1) & ~(page_ - 1);
    const auto last = reinterpret_cast<std::uintptr_t>(end) & ~(page_ - 1);
    if (faulted && first < last) {
      (void)::madvise(reinterpret_cast<void*>(first), last - first, kPopulate);
    }
  }

 private:
  static constexpr long kFew = 8;  // a stack or a buffer of ours

  static long minor_faults() noexcept {
    rusage used{};
    (void)::getrusage(RUSAGE_THREAD, &used);  // can't fail for ourselves
    return used.ru_minflt;
  }

  std::uintptr_t page_ = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  long faults_ = minor_faults();
};

}  // namespace

void bulk_read(std::span<const int> files, std::span<const Extent> extents, std::span<std::byte> memory,
               const BulkOptions& options, BulkProgress& progress, std::byte* digests) {
  check(files, extents, memory.size(), options);
  const std::size_t target = options.direct ? kDirectUnit : kUnit;
  const std::size_t chunk = options.digest_chunk == 0 ? target : options.digest_chunk;
  const std::size_t unit = std::max<std::size_t>(1, target / chunk) * chunk;
  const std::size_t units = chunk_count(memory.size(), unit);
  // Reads that wait for a device are large, and long out of any cache when they are there.
  const bool in_strides = options.digest_chunk != 0 && chunk <= kDigestChunk && !options.direct;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex lock;
  std::exception_ptr failure;

  const auto work = [&]() noexcept {
    try {
      Reader reader(files, extents, memory, unit, options.direct);
      Populate populate;
      ChunkDigester digester;
      while (!stop.load(std::memory_order_relaxed)) {
        const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
        if (i >= units) {
          return;
        }
        if (progress.cancelled()) {
          throw BulkStopped();
        }
        const std::size_t begin = i * unit;
        const std::size_t end = std::min(memory.size(), begin + unit);
        populate.unit(memory.data() + begin, memory.data() + end);
        std::uint64_t bytes = 0;
        for (std::size_t at = begin; at < end && in_strides; at += chunk) {
          const std::span<std::byte> whole = memory.subspan(at, std::min(chunk, end - at));
          for (std::size_t done = 0; done < whole.size();) {
            const std::size_t next = std::min(whole.size(), done + kStride);
            bytes += reader.fill(at + done, at + next);
            digester.extend(whole.first(next));
            done = next;
          }
          set_table_entry(digests, at / chunk, digester.finish(whole));
        }
        if (!in_strides) {
          bytes = reader.fill(begin, end);
        }
        if (!in_strides && options.digest_chunk != 0) {
          chunk_digests(memory.subspan(begin, end - begin), chunk, 1, digests + begin / chunk * 8);
        }
        progress.add(bytes);
      }
    } catch (...) {
      const std::scoped_lock guard(lock);
      if (!failure) {
        failure = std::current_exception();
      }
      stop.store(true, std::memory_order_relaxed);
    }
  };

  {
    // Never the caller's own thread, which could not take a nice value back.
    std::vector<std::jthread> readers;  // joined on every way out
    const std::size_t wanted = std::min(options.threads, units);
    try {
      for (std::size_t i = 0; i < wanted; ++i) {
        readers.emplace_back([&] {
          if (options.nice != 0) {
            (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), options.nice);
          }
          work();
        });
      }
    } catch (const std::system_error&) {
      // EAGAIN under a pids limit: the threads that did start do the work, or else this one.
    } catch (const std::bad_alloc&) {
      // The same.
    }
    if (readers.empty()) {
      work();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace flashboot
