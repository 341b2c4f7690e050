// A shared library that the process has loaded already, such as torch's: its functions by name.
#pragma once

#include <string>

namespace flashboot {

class LoadedLibrary {
 public:
  // Raises std::runtime_error when nobody has loaded `path`: it is never loaded from here. From now on it stays.
  explicit LoadedLibrary(const std::string& path);

  // Raises std::runtime_error when it has nothing of that name.
  [[nodiscard]] void* find(const char* name) const;

 private:
  void* handle_;
};

}  // namespace flashboot
