#include "bulk_read.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "digest.hpp"
#include "extent_reader.hpp"

namespace flashboot {
namespace {

// Memory that one thread fills before it takes the next.
constexpr std::size_t kUnit = std::size_t{1} << 20;
// What is read before it is digested: it and its pages of the file are still in a core's own cache then.
constexpr std::size_t kStride = std::size_t{512} << 10;
// Of O_DIRECT reads, which wait for the device each time.
constexpr std::size_t kDirectUnit = std::size_t{8} << 20;
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

// Maps the next unit at once when the last one faulted: one fault for each page costs more than the copy, and asking
// for pages that are mapped already costs as much as reading them. Only ever a hint: where the kernel does not know it
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

  // Units come from a shared counter, so that a thread which the kernel holds up keeps back one unit.
  const auto work = [&]() noexcept {
    try {
      ExtentReader reader(files, extents, memory, unit, options.direct);
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
