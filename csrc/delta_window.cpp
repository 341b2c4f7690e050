#include "delta_window.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace flashboot {
namespace {

// Memory of threads that work on windows, kept from one to the next: its pages were made present once.
class Workspaces {
 public:
  std::unique_ptr<DeltaWorkspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<DeltaWorkspace>();
    }
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void give(std::unique_ptr<DeltaWorkspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<DeltaWorkspace>> free_;
};

Workspaces& workspaces() {
  static Workspaces all;
  return all;
}

// Calls `work(index, workspace)` for all chunks, in any order. Whatever chunk breaks, all are looked at, so that the
// one that is told does not depend on the threads.
template <typename Work>
void each_chunk(std::size_t count, std::uint64_t first, std::size_t threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::optional<DeltaChunkBroken> broken;
  std::exception_ptr failure;
  const auto loop = [&]() noexcept {
    try {
      std::unique_ptr<DeltaWorkspace> workspace = workspaces().take();
      for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        try {
          work(i, *workspace);
        } catch (const DeltaBroken& chunk) {
          const std::lock_guard lock(mutex);
          if (!broken || first + i < broken->chunk) {
            broken = DeltaChunkBroken{first + i, chunk};
          }
        }
      }
      workspaces().give(std::move(workspace));
    } catch (...) {  // out of memory: for the caller, in its own thread
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;  // joined on every way out
    try {
      for (std::size_t i = 1; i < std::min(threads, count); ++i) {
        helpers.emplace_back(loop);
      }
    } catch (const std::system_error&) {
      // EAGAIN under a pids limit: the threads that did start, and this one, finish the job.
    } catch (const std::bad_alloc&) {
      // The same.
    }
    loop();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (broken) {
    throw *broken;
  }
}

template <typename Byte>
std::span<Byte> chunk_of(std::span<Byte> memory, std::size_t index) {
  const std::size_t begin = index * kDigestChunk;
  return memory.subspan(begin, std::min(kDigestChunk, memory.size() - begin));
}

}  // namespace

std::vector<DeltaRow> encode_window(Bytes base, Bytes next, std::uint64_t offset, std::span<const WordRun> runs,
                                    unsigned classes, std::size_t threads, std::byte* out) {
  std::vector<DeltaRow> rows(chunk_count(base.size(), kDigestChunk));
  each_chunk(rows.size(), offset / kDigestChunk, threads, [&](std::size_t i, DeltaWorkspace& workspace) {
    rows[i] = encode_chunk(chunk_of(base, i), chunk_of(next, i), offset + i * kDigestChunk, runs, classes, workspace,
                           out + i * kDigestChunk);
  });
  return rows;
}

DeltaWindow::DeltaWindow(Bytes base, std::uint64_t offset, std::span<const WordRun> runs,
                         std::span<const DeltaRow> rows, Bytes bodies, bool reverse, std::size_t threads)
    : offset_(offset), nbytes_(base.size()), patches_(rows.size()) {
  std::vector<Bytes> body(rows.size());
  std::size_t begin = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].bytes > bodies.size() - begin) {
      throw std::invalid_argument("bodies that end before the last chunk's");
    }
    body[i] = bodies.subspan(begin, rows[i].bytes);
    begin += rows[i].bytes;
  }
  if (begin != bodies.size() || rows.size() != chunk_count(base.size(), kDigestChunk)) {
    throw std::invalid_argument("bodies or rows for other chunks than these");
  }
  each_chunk(rows.size(), offset / kDigestChunk, threads, [&](std::size_t i, DeltaWorkspace& workspace) {
    const Bytes chunk = chunk_of(base, i);
    patches_[i].locate(chunk, offset + i * kDigestChunk, runs, rows[i], body[i], workspace);
    if (reverse) {
      patches_[i].encode_reverse(chunk, workspace);
    }
  });
}

void DeltaWindow::write(std::span<std::byte> memory, std::size_t threads) const {
  if (memory.size() != nbytes_) {
    throw std::invalid_argument("memory of another size than what was located");
  }
  try {
    each_chunk(patches_.size(), offset_ / kDigestChunk, threads,
               [&](std::size_t i, DeltaWorkspace&) { patches_[i].write(chunk_of(memory, i)); });
  } catch (...) {  // whatever it was: no chunk is left changed
    restore(memory);
    throw;
  }
}

void DeltaWindow::restore(std::span<std::byte> memory) const {
  for (std::size_t i = 0; i < patches_.size(); ++i) {
    patches_[i].restore(chunk_of(memory, i));
  }
}

std::vector<std::byte> DeltaWindow::journal() const {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < patches_.size(); ++i) {
    patches_[i].journal(offset_ + i * kDigestChunk, out);
  }
  return out;
}

}  // namespace flashboot
