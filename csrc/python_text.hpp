// Many names for Python's dictionaries, prepared by a thread without the GIL.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "layout_table.hpp"

namespace flashboot {

class PreparedNames {
 public:
  PreparedNames() = default;
  // Without the GIL. `names` must stay as long as this.
  explicit PreparedNames(const LayoutTable::Names& names) {
    names_.reserve(names.ends.size());
    std::size_t begin = 0;
    for (const std::size_t end : names.ends) {
      const std::string_view text = std::string_view(names.text).substr(begin, end - begin);
      begin = end;
      const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
      // What str.__hash__ has for text of ASCII; it depends on nothing but the process.
      names_.push_back({text, ascii ? _Py_HashBytes(text.data(), static_cast<Py_ssize_t>(text.size())) : 0, ascii});
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return names_.size(); }
  // A new str, or null and Python's error. With the GIL.
  [[nodiscard]] PyObject* make(std::size_t number) const {
    const Name& name = names_[number];
    const auto size = static_cast<Py_ssize_t>(name.text.size());
    if (!name.ascii) {
      return PyUnicode_DecodeUTF8(name.text.data(), size, nullptr);
    }
    PyObject* const made = PyUnicode_New(size, 0x7f);
    if (made != nullptr && size != 0) {
      std::ranges::copy(name.text, static_cast<char*>(PyUnicode_DATA(made)));
      reinterpret_cast<PyASCIIObject*>(made)->hash = name.hash;
    }
    return made;
  }

 private:
  struct Name {
    std::string_view text;
    Py_hash_t hash;
    bool ascii;
  };

  std::vector<Name> names_;
};

}  // namespace flashboot
