#include "torch_arena.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace flashboot {
namespace {

constexpr std::chrono::milliseconds kLook{5};

struct Mapping {
  Mapping(int descriptor, std::size_t least) {
    struct stat facts{};
    if (fstat(descriptor, &facts) != 0 || static_cast<std::size_t>(facts.st_size) < least) {
      throw std::runtime_error("the arena is smaller than its layout says");
    }
    bytes = static_cast<std::size_t>(facts.st_size);
    data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) {
      throw std::runtime_error("the arena can't be mapped");
    }
  }
  ~Mapping() { munmap(data, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&&) = delete;
  Mapping& operator=(Mapping&&) = delete;

  void* data;
  std::size_t bytes;
};

using FromBlob = std::int32_t (*)(void*, std::int64_t, const std::int64_t*, const std::int64_t*, std::int64_t,
                                  std::int32_t, std::int32_t, std::int32_t, TorchShims::Handle*, std::int32_t,
                                  const std::uint8_t*, std::int64_t, void (*)(void*, void*), void*);
using Number = std::int32_t (*)();

void release(void* /*data*/, void* context) { delete static_cast<std::shared_ptr<Mapping>*>(context); }

// A tensor of one dtype over the whole mapping, which it keeps.
TorchShims::Handle base_of(const TorchShims& shims, const LayoutDtype& dtype, const std::shared_ptr<Mapping>& mapping) {
  const auto number = [&](const std::string& name) { return reinterpret_cast<Number>(shims.library().find(name.c_str()))(); };
  const auto elements = static_cast<std::int64_t>(mapping->bytes / dtype.bytes);
  const std::int64_t stride = 1;
  TorchShims::Handle made = nullptr;
  const std::int32_t code = number("aoti_torch_dtype_" + std::string(dtype.name));
  const std::int32_t device = number("aoti_torch_device_type_cpu");
  const std::int32_t layout = number("aoti_torch_layout_strided");
  const auto from_blob = reinterpret_cast<FromBlob>(shims.library().find("torch_from_blob"));
  // If it fails the context may have been freed or not; it is a few bytes, and this process goes on without.
  if (from_blob(mapping->data, 1, &elements, &stride, 0, code, device, -1, &made, layout, nullptr, 0, &release,
                new std::shared_ptr<Mapping>(mapping)) != 0) {
    throw std::runtime_error("torch could not make a tensor of " + std::string(dtype.name) + " over the arena");
  }
  return made;
}

}  // namespace

bool wait_for_library(const std::string& library, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    // The loader's lock is held while constructors run: what is found here is ready.
    if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD); handle != nullptr) {
      (void)dlclose(handle);
      return true;
    }
    std::this_thread::sleep_for(kLook);
  }
  return false;
}

TorchArena::TorchArena(const std::string& library, const LayoutTable& table, int descriptor) : shims_(library) {
  const auto mapping = std::make_shared<Mapping>(descriptor, table.arena_bytes());
  std::array<TorchShims::Handle, kLayoutDtypes.size()> bases{};
  try {
    for (const LayoutTable::Tensor& tensor : table.tensors()) {
      const std::uint32_t dtype = table.forms()[tensor.form].dtype;
      if (bases[dtype] == nullptr && table.in_place(tensor)) {
        bases[dtype] = base_of(shims_, kLayoutDtypes[dtype], mapping);
      }
    }
    handles_ = shims_.make(views_of(table, bases));
  } catch (...) {
    shims_.drop(bases);
    throw;
  }
  shims_.drop(bases);
}

}  // namespace flashboot
