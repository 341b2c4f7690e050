#include "present_arenas.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>

namespace flashboot {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, from Linux 5.14 on

// Python's own allocator of arenas maps and unmaps them; it lies where the rest of Python does.
bool is_pythons_own(const PyObjectArenaAllocator& allocator) {
  Dl_info one{};
  Dl_info other{};
  return dladdr(reinterpret_cast<void*>(allocator.free), &one) != 0 &&
         dladdr(reinterpret_cast<void*>(&PyObject_Malloc), &other) != 0 && one.dli_fbase == other.dli_fbase;
}

}  // namespace

PresentArenas::PresentArenas(std::size_t bytes) {
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  void* mapped = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return;  // Python asks for its memory itself
  }
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t skipped = kHuge - reinterpret_cast<std::uintptr_t>(begin) % kHuge;
  next_ = begin + skipped;
  end_ = next_ + bytes;
  (void)munmap(begin, skipped);
  if (skipped < kHuge) {
    (void)munmap(end_, kHuge - skipped);
  }
  (void)madvise(next_, bytes, MADV_HUGEPAGE);
  if (madvise(next_, bytes, kPopulateWrite) != 0) {
    for (auto* page = next_; page != end_; page += kPage) {
      *static_cast<volatile std::byte*>(page) = std::byte{};
    }
  }
}

PresentArenas::~PresentArenas() {
  if (next_ != end_) {
    (void)munmap(next_, static_cast<std::size_t>(end_ - next_));
  }
}

PresentArenas::Lent::Lent(PresentArenas& from) : from_(from) {
  PyObject_GetArenaAllocator(&own_);
  lent_ = is_pythons_own(own_);
  if (lent_) {
    PyObjectArenaAllocator ours{this, &piece, &free};
    PyObject_SetArenaAllocator(&ours);
  }
}

PresentArenas::Lent::~Lent() {
  if (lent_) {
    PyObject_SetArenaAllocator(&own_);
  }
}

void* PresentArenas::Lent::piece(void* self, std::size_t bytes) {
  const auto& lent = *static_cast<Lent*>(self);
  PresentArenas& from = lent.from_;
  if (bytes % kPage != 0 || bytes > static_cast<std::size_t>(from.end_ - from.next_)) {
    return lent.own_.alloc(lent.own_.ctx, bytes);
  }
  void* const memory = from.next_;
  from.next_ += bytes;
  return memory;
}

void PresentArenas::Lent::free(void* self, void* memory, std::size_t bytes) {
  const auto& lent = *static_cast<Lent*>(self);
  lent.own_.free(lent.own_.ctx, memory, bytes);
}

}  // namespace flashboot
