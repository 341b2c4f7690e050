#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "errors.hpp"
#include "layout_document.hpp"
#include "layout_table.hpp"
#include "python_buffer.hpp"
#include "python_list.hpp"
#include "python_names.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

void make_table(LayoutTable* self, nb::handle body, std::vector<std::uint64_t> segment_ends,
                std::uint64_t attribute_sets) {
  const PinnedBuffer buffer(body);
  const nb::gil_scoped_release unlocked;
  new (self) LayoutTable(buffer.bytes(), std::move(segment_ends), attribute_sets);
}

// Head and tables; Malformed for what is no sound document.
nb::tuple parts_of(nb::handle document) {
  const PinnedBuffer buffer(document);
  const LayoutDocument parts = [&] {
    const nb::gil_scoped_release unlocked;
    return LayoutDocument(buffer.bytes());
  }();
  return nb::make_tuple(nb::bytes(parts.head.data(), parts.head.size()),
                        nb::bytes(parts.tables.data(), parts.tables.size()));
}

nb::tuple tuple_of(std::span<const std::int64_t> numbers) {
  const auto tuple = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  if (!tuple.is_valid()) {
    throw nb::python_error();
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::int_(numbers[i]).release().ptr());
  }
  return tuple;
}

nb::list names_of(const LayoutTable& table) {
  return list_of(table.names(), [&](std::size_t i) { return text(table.name(i)); });
}

nb::list modules_of(const LayoutTable& table) {
  const std::vector<std::string> paths = table.paths();
  return list_of(paths.size(), [&](std::size_t i) { return text(paths[i]); });
}

nb::list storages_of(const LayoutTable& table) {
  return list_of(table.storages().size(), [&](std::size_t i) {
    const LayoutTable::Storage& storage = table.storages()[i];
    return nb::make_tuple(storage.offset, storage.bytes, storage.kind);
  });
}

nb::list forms_of(const LayoutTable& table) {
  return list_of(table.forms().size(), [&](std::size_t i) {
    const LayoutTable::Form& form = table.forms()[i];
    return nb::make_tuple(tuple_of(table.sizes(form)), tuple_of(table.strides(form)),
                          text(kLayoutDtypes[form.dtype].name), form.parameter != 0, text(table.name(form.cls)),
                          form.attributes);
  });
}

nb::list tensors_of(const LayoutTable& table) {
  return list_of(table.tensors().size(), [&](std::size_t i) {
    const LayoutTable::Tensor& tensor = table.tensors()[i];
    return nb::make_tuple(tensor.storage, tensor.offset, tensor.form);
  });
}

// Modules and attributes that many bindings share are one str each, so that looking them up again is quick.
nb::list bindings_of(const LayoutTable& table) {
  const nb::list modules = modules_of(table);
  const nb::list names = names_of(table);
  return list_of(table.bindings().size(), [&](std::size_t i) {
    const LayoutTable::Binding& binding = table.bindings()[i];
    return nb::make_tuple(nb::handle(PyList_GET_ITEM(modules.ptr(), binding.module)),
                          nb::handle(PyList_GET_ITEM(names.ptr(), binding.attribute)), binding.kind, binding.tensor);
  });
}

void by_name(const LayoutTable& table, const nb::list& tensors, nb::dict into) {
  if (tensors.size() != table.tensors().size()) {
    throw nb::value_error("by_name wants an object for every tensor");
  }
  put_by_name(table, table.full_names(), into, [&](std::size_t tensor) {
    return nb::borrow(PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(tensor)));
  });
}

}  // namespace

void bind_layout(nb::module_& module) {
  nb::dict dtypes;
  for (const LayoutDtype& dtype : kLayoutDtypes) {
    dtypes[nb::cast(dtype.name)] = dtype.bytes;
  }
  module.attr("LAYOUT_DTYPES") = dtypes;
  module.attr("LAYOUT_ALIGNMENT") = kLayoutAlignment;
  module.attr("LAYOUT_MOST_BYTES") = kLayoutMostBytes;
  module.attr("LAYOUT_MOST_DOCUMENT") = kLayoutMostDocument;
  module.attr("LAYOUT_VERSION") = kLayoutVersion;
  module.def("layout_parts", &parts_of, nb::arg("document"));

  nb::class_<LayoutTable>(module, "LayoutTable")
      .def("__init__", &make_table, nb::arg("body"), nb::arg("segment_ends"), nb::arg("attribute_sets"))
      .def_prop_ro("module_count", [](const LayoutTable& table) { return table.modules().size() + 1; })
      .def_prop_ro("all_in_place", &LayoutTable::all_in_place)
      .def("modules", &modules_of)
      .def("storages", &storages_of)
      .def("forms", &forms_of)
      .def("tensors", &tensors_of)
      .def("bindings", &bindings_of)
      .def("by_name", &by_name, nb::arg("tensors"), nb::arg("into"));
}

}  // namespace flashboot
