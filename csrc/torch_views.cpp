#include "torch_views.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>

namespace flashboot {

TorchShims::TorchShims(const std::string& library) {
  // RTLD_NOLOAD: whoever has no torch loaded gets none. The reference is kept: torch is never unloaded.
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library_ == nullptr) {
    throw std::runtime_error(library + " is not loaded");
  }
  reinterpret_ = reinterpret_cast<Reinterpret>(find("aoti_torch__reinterpret_tensor"));
  delete_ = reinterpret_cast<Delete>(find("aoti_torch_delete_tensor_object"));
}

void* TorchShims::find(const char* name) const {
  void* found = dlsym(library_, name);
  if (found == nullptr) {
    throw std::runtime_error(std::string("this torch has no ") + name);
  }
  return found;
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
