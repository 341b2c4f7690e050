#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "bindings.hpp"
#include "checkpoint.hpp"
#include "errors.hpp"
#include "python_buffer.hpp"
#include "safetensors.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

std::string_view text_of(const PinnedBuffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.bytes().data()), buffer.bytes().size()};
}

void make_header(SafetensorsHeader* self, nb::handle text, std::uint64_t file_bytes) {
  const PinnedBuffer buffer(text);
  const nb::gil_scoped_release unlocked;
  new (self) SafetensorsHeader(text_of(buffer), file_bytes);
}

void make_map(WeightMap* self, nb::handle text) {
  const PinnedBuffer buffer(text);
  const nb::gil_scoped_release unlocked;
  new (self) WeightMap(text_of(buffer));
}

nb::tuple tuple_of(std::span<const std::uint64_t> sizes) {
  const auto tuple = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
  if (!tuple.is_valid()) {
    throw nb::python_error();
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::int_(sizes[i]).release().ptr());
  }
  return tuple;
}

nb::list tensors_of(const SafetensorsHeader& header) {
  nb::list tensors;
  for (const Tensor& tensor : header.tensors()) {
    tensors.append(nb::make_tuple(tensor.begin, tensor.end, header.name(tensor), kDtypes[tensor.dtype].name,
                                  tuple_of(header.shape(tensor))));
  }
  return tensors;
}

nb::tuple placed_of(const CheckpointLayout& layout, const Placed& placed) {
  const SafetensorsHeader& header = *layout.headers()[placed.file];
  const Tensor& tensor = *placed.tensor;
  return nb::make_tuple(header.name(tensor), kDtypes[tensor.dtype].name, tuple_of(header.shape(tensor)),
                        placed.memory_offset, placed.length(), placed.file, header.data_start() + tensor.begin);
}

nb::list placed(const CheckpointLayout& layout) {
  nb::list tensors;
  layout.each([&](const Placed& each) {
    tensors.append(placed_of(layout, each));
    return true;
  });
  return tensors;
}

std::optional<nb::tuple> placed_at(const CheckpointLayout& layout, std::size_t file, std::uint64_t offset) {
  std::optional<nb::tuple> found;
  layout.each([&](const Placed& each) {
    const std::uint64_t begin = layout.headers()[each.file]->data_start() + each.tensor->begin;
    if (each.file == file && offset >= begin && offset - begin < each.length()) {
      found = placed_of(layout, each);
    }
    return !found;
  });
  return found;
}

nb::bytes extents(const CheckpointLayout& layout) {
  const std::vector<Extent> rows = layout.extents();
  return nb::bytes(rows.data(), rows.size() * sizeof(Extent));
}

std::optional<std::tuple<std::string, std::size_t, std::size_t>> twice(const CheckpointLayout& layout) {
  std::optional<CheckpointLayout::Twice> found;
  {
    const nb::gil_scoped_release unlocked;
    found = layout.twice();
  }
  return found ? std::optional(std::tuple(found->name, found->first, found->second)) : std::nullopt;
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  nb::exception<Malformed>(module, "Malformed");
  nb::exception<Truncated>(module, "Truncated");

  nb::dict bits;
  for (const Dtype& dtype : kDtypes) {
    bits[nb::cast(dtype.name)] = dtype.bits;
  }
  module.attr("DTYPE_BITS") = bits;
  module.attr("TENSOR_ALIGNMENT") = kTensorAlignment;

  nb::class_<SafetensorsHeader>(module, "SafetensorsHeader")
      .def("__init__", &make_header, nb::arg("text"), nb::arg("file_bytes"))
      .def("__len__", [](const SafetensorsHeader& header) { return header.tensors().size(); })
      .def_prop_ro("data_start", &SafetensorsHeader::data_start)
      .def_prop_ro("data_bytes", &SafetensorsHeader::data_bytes)
      .def("tensors", &tensors_of);

  nb::class_<WeightMap>(module, "WeightMap")
      .def("__init__", &make_map, nb::arg("text"))
      .def_prop_ro("files", &WeightMap::files)
      .def("absent", &WeightMap::absent, nb::arg("file"), nb::arg("header"), nb::call_guard<nb::gil_scoped_release>());

  nb::class_<CheckpointLayout>(module, "CheckpointLayout")
      .def("__init__",
           [](CheckpointLayout* self, std::vector<std::shared_ptr<SafetensorsHeader>> headers) {
             new (self) CheckpointLayout({headers.begin(), headers.end()});
           },
           nb::arg("headers"))
      .def("__len__", &CheckpointLayout::size)
      .def_prop_ro("nbytes", &CheckpointLayout::nbytes)
      .def("twice", &twice)
      .def("extents", &extents)
      .def("tensors", &placed)
      .def("at", &placed_at, nb::arg("file"), nb::arg("file_offset"));
}

}  // namespace flashboot
