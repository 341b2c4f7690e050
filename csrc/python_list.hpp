// A list for Python whose length is known.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace flashboot {

// A list of `count` entries; `make(i)` gives each, a nanobind object.
template <typename Make>
nanobind::list list_of(std::size_t count, const Make& make) {
  auto list = nanobind::steal<nanobind::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) {
    throw nanobind::python_error();
  }
  for (std::size_t i = 0; i < count; ++i) {
    nanobind::object entry = make(i);
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), entry.release().ptr());
  }
  return list;
}

}  // namespace flashboot
