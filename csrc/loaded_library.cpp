#include "loaded_library.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace flashboot {

LoadedLibrary::LoadedLibrary(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
  if (handle_ == nullptr) {
    throw std::runtime_error(path + " is not loaded");
  }
}

void* LoadedLibrary::find(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) {
    throw std::runtime_error(std::string("this torch has no ") + name);
  }
  return found;
}

}  // namespace flashboot
