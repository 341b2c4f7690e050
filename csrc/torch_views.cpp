#include "torch_views.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>

namespace flashboot {
namespace {

void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    throw std::runtime_error(std::string("this torch has no ") + name);
  }
  return found;
}

}  // namespace

TorchShims::TorchShims(const std::string& library) {
  // RTLD_NOLOAD: whoever has no torch loaded gets none. The reference is kept: torch is never unloaded.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) {
    throw std::runtime_error(library + " is not loaded");
  }
  reinterpret_ = reinterpret_cast<Reinterpret>(symbol(handle, "aoti_torch__reinterpret_tensor"));
  delete_ = reinterpret_cast<Delete>(symbol(handle, "aoti_torch_delete_tensor_object"));
}

std::vector<TorchShims::Handle> TorchShims::make(std::span<const View> views) const {
  std::vector<Handle> made(views.size(), nullptr);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const View& view = views[i];
    if (view.base == nullptr) {
      continue;
    }
    const auto dims = static_cast<std::int64_t>(view.sizes.size());
    if (reinterpret_(view.base, dims, view.sizes.data(), view.strides.data(), view.offset, &made[i]) != 0) {
      made[i] = nullptr;
      drop(made);
      throw std::runtime_error("torch could not make view " + std::to_string(i) + " of " +
                               std::to_string(views.size()));
    }
  }
  return made;
}

void TorchShims::drop(std::span<const Handle> handles) const noexcept {
  for (const Handle handle : handles) {
    if (handle != nullptr) {
      (void)delete_(handle);  // can fail only for memory that is none of torch's
    }
  }
}

}  // namespace flashboot
