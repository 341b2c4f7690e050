// The tensors of a layout by their names, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string_view>

#include "errors.hpp"
#include "layout_table.hpp"

namespace flashboot {

inline nanobind::object text(std::string_view bytes) {
  PyObject* made = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr);
  if (made == nullptr) {
    throw nanobind::python_error();
  }
  return nanobind::steal(made);
}

// Fills an empty dictionary; `object_of(tensor)` gives the object of a tensor by its number, once per binding.
// Raises Malformed when two names are the same; what is in `into` then is undefined.
template <typename ObjectOf>
void put_by_name(const LayoutTable& table, const LayoutTable::Names& names, nanobind::dict& into,
                 const ObjectOf& object_of) {
  if (into.size() != 0) {
    throw nanobind::value_error("an empty dictionary is wanted");
  }
  const std::string_view all = names.text;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < names.ends.size(); ++i) {
    const nanobind::object name = text(all.substr(begin, names.ends[i] - begin));
    begin = names.ends[i];
    const nanobind::object object = object_of(table.bindings()[i].tensor);
    if (PyDict_SetItem(into.ptr(), name.ptr(), object.ptr()) != 0) {
      throw nanobind::python_error();
    }
    if (into.size() != i + 1) {
      throw Malformed("two places of tensors read the same as names, such as a.b and c beside a and b.c");
    }
  }
}

}  // namespace flashboot
