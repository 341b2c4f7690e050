#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "errors.hpp"
#include "layout_table.hpp"
#include "python_buffer.hpp"
#include "torch_arena.hpp"
#include "torch_views.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

void make_table(LayoutTable* self, nb::handle body, std::vector<std::uint64_t> segment_ends,
                std::uint64_t attribute_sets) {
  const PinnedBuffer buffer(body);
  const nb::gil_scoped_release unlocked;
  new (self) LayoutTable(buffer.bytes(), std::move(segment_ends), attribute_sets);
}

nb::object text(std::string_view bytes) {
  PyObject* made = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr);
  if (made == nullptr) {
    throw nb::python_error();
  }
  return nb::steal(made);
}

// A list of `count` entries; `make(i)` gives each.
template <typename Make>
nb::list list_of(std::size_t count, const Make& make) {
  auto list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) {
    throw nb::python_error();
  }
  for (std::size_t i = 0; i < count; ++i) {
    nb::object entry = make(i);
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), entry.release().ptr());
  }
  return list;
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

nb::dict by_name(const LayoutTable& table, const nb::list& tensors) {
  if (tensors.size() != table.tensors().size()) {
    throw nb::value_error("by_name wants an object for every tensor");
  }
  nb::dict result;
  LayoutTable::NameBuffer buffer;
  for (const LayoutTable::Binding& binding : table.bindings()) {
    const nb::object name = text(table.full_name(binding, buffer));
    if (PyDict_SetItem(result.ptr(), name.ptr(), PyList_GET_ITEM(tensors.ptr(), binding.tensor)) != 0) {
      throw nb::python_error();
    }
  }
  if (result.size() != table.bindings().size()) {
    throw Malformed("two places of tensors read the same as names, such as a.b and c beside a and b.c");
  }
  return result;
}

bool all_in_place(const LayoutTable& table) {
  return std::ranges::all_of(table.tensors(), [&](const auto& tensor) { return table.in_place(tensor); });
}

TorchShims::Handle handle_in(nb::handle capsule) {
  if (capsule.is_none()) {
    return nullptr;
  }
  void* handle = PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr()));
  if (handle == nullptr) {
    throw nb::python_error();
  }
  return handle;
}

// Handles for torch, which takes them out of the capsules. Takes over `made`.
nb::list capsules_of(const TorchShims& torch, const std::vector<TorchShims::Handle>& made) {
  try {
    return list_of(made.size(), [&](std::size_t i) -> nb::object {
      if (made[i] == nullptr) {
        return nb::none();
      }
      PyObject* capsule = PyCapsule_New(made[i], nullptr, nullptr);
      if (capsule == nullptr) {
        throw nb::python_error();
      }
      return nb::steal(capsule);
    });
  } catch (...) {
    torch.drop(made);
    throw;
  }
}

nb::list make_views(const TorchShims& torch, const LayoutTable& table, const nb::list& bases) {
  if (bases.size() != kLayoutDtypes.size()) {
    throw nb::value_error("make_views wants a base per dtype");
  }
  std::vector<TorchShims::Handle> base_of;
  for (const nb::handle base : bases) {
    base_of.push_back(handle_in(base));
  }
  std::vector<TorchShims::Handle> made;
  {
    const nb::gil_scoped_release unlocked;
    std::vector<TorchShims::View> views;
    views.reserve(table.tensors().size());
    for (const LayoutTable::Tensor& tensor : table.tensors()) {
      const LayoutTable::Form& form = table.forms()[tensor.form];
      const std::uint64_t elements = table.byte_offset(tensor) / kLayoutDtypes[form.dtype].bytes;
      views.push_back({table.in_place(tensor) ? base_of[form.dtype] : nullptr, table.sizes(form), table.strides(form),
                       static_cast<std::int64_t>(elements)});
    }
    made = torch.make(views);
  }
  return capsules_of(torch, made);
}

// From a thread of its own: waits for torch, then makes what it can make without it being imported.
class Ahead {
 public:
  void make(const std::string& library, const LayoutTable& table, int descriptor) {
    const nb::gil_scoped_release unlocked;
    if (wait_for_library(library, stop_)) {
      arena_ = std::make_unique<TorchArena>(library, table, descriptor);
    }
  }
  void stop() noexcept { stop_.store(true); }
  nb::object take() {
    if (arena_ == nullptr) {
      return nb::none();
    }
    const std::unique_ptr<TorchArena> arena = std::move(arena_);
    const std::vector<TorchShims::Handle> made = arena->take();
    return capsules_of(arena->shims(), made);
  }

 private:
  std::atomic<bool> stop_ = false;
  std::unique_ptr<TorchArena> arena_;
};

}  // namespace

void bind_layout(nb::module_& module) {
  nb::dict dtypes;
  for (const LayoutDtype& dtype : kLayoutDtypes) {
    dtypes[nb::cast(dtype.name)] = dtype.bytes;
  }
  module.attr("LAYOUT_DTYPES") = dtypes;
  module.attr("LAYOUT_ALIGNMENT") = kLayoutAlignment;
  module.attr("LAYOUT_MOST_BYTES") = kLayoutMostBytes;

  nb::class_<LayoutTable>(module, "LayoutTable")
      .def("__init__", &make_table, nb::arg("body"), nb::arg("segment_ends"), nb::arg("attribute_sets"))
      .def_prop_ro("module_count", [](const LayoutTable& table) { return table.modules().size() + 1; })
      .def_prop_ro("all_in_place", &all_in_place)
      .def("modules", &modules_of)
      .def("storages", &storages_of)
      .def("forms", &forms_of)
      .def("tensors", &tensors_of)
      .def("bindings", &bindings_of)
      .def("by_name", &by_name, nb::arg("tensors"));
  nb::class_<TorchShims>(module, "TorchShims")
      .def(nb::init<const std::string&>(), nb::arg("library"))
      .def("make_views", &make_views, nb::arg("table"), nb::arg("bases"));
  nb::class_<Ahead>(module, "TorchAhead")
      .def(nb::init<>())
      .def("make", &Ahead::make, nb::arg("library"), nb::arg("table"), nb::arg("descriptor"))
      .def("stop", &Ahead::stop)
      .def("take", &Ahead::take);
}

}  // namespace flashboot
