#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "bindings.hpp"
#include "bulk_read.hpp"
#include "digest.hpp"
#include "python_buffer.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

std::vector<Extent> extents_of(nb::handle buffer) {
  static_assert(sizeof(Extent) == 4 * sizeof(std::uint64_t));
  const PinnedBuffer table(buffer);
  if (table.bytes().size() % sizeof(Extent) != 0) {
    throw nb::value_error("extents must be whole rows of 4 x 8 bytes");
  }
  std::vector<Extent> extents(table.bytes().size() / sizeof(Extent));
  if (!extents.empty()) {
    std::memcpy(extents.data(), table.bytes().data(), table.bytes().size());
  }
  return extents;
}

nb::bytes read(const std::vector<int>& files, nb::handle table, nb::handle buffer, std::int64_t threads, bool direct,
               std::int64_t digest_chunk, BulkProgress& progress, int nice) {
  if (threads < 1 || digest_chunk < 0) {
    throw nb::value_error("threads must be at least 1, digest_chunk at least 0");
  }
  const std::vector<Extent> extents = extents_of(table);
  const PinnedBuffer memory(buffer, PyBUF_WRITABLE);
  BulkOptions options;
  options.threads = static_cast<std::size_t>(threads);
  options.direct = direct;
  options.digest_chunk = static_cast<std::size_t>(digest_chunk);
  options.nice = nice;
  const std::size_t chunks =
      options.digest_chunk == 0 ? 0 : chunk_count(memory.writable().size(), options.digest_chunk);
  auto digests = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(chunks * 8)));
  if (!digests.is_valid()) {
    throw nb::python_error();
  }
  // Nobody else has seen the new object yet, so that writing into it without the GIL is sound.
  auto* out = reinterpret_cast<std::byte*>(PyBytes_AsString(digests.ptr()));
  {
    const nb::gil_scoped_release unlocked;
    bulk_read(files, extents, memory.writable(), options, progress, out);
  }
  return digests;
}

void translate_failure(const std::exception_ptr& pointer, void* type) {
  try {
    std::rethrow_exception(pointer);
  } catch (const BulkFailure& failure) {
    const nb::object arguments = nb::make_tuple(failure.file(), failure.offset(), failure.what());
    PyErr_SetObject(static_cast<PyObject*>(type), arguments.ptr());
  }
}

}  // namespace

void bind_load(nb::module_& module) {
  nb::exception<BulkStopped>(module, "BulkCancelled");
  // Not nb::exception, which gives Python the message alone.
  const auto failure = nb::steal<nb::object>(PyErr_NewException("flashboot_agent._native.BulkError", nullptr, nullptr));
  if (!failure.is_valid()) {
    throw nb::python_error();
  }
  module.attr("BulkError") = failure;
  nb::register_exception_translator(&translate_failure, failure.ptr());  // which the module keeps alive

  nb::class_<BulkProgress>(module, "BulkProgress")
      .def(nb::init<>())
      .def_prop_ro("done", &BulkProgress::done)
      .def("cancel", &BulkProgress::cancel);

  module.def("bulk_read", &read, nb::arg("files"), nb::arg("extents"), nb::arg("memory"), nb::kw_only(),
             nb::arg("threads"), nb::arg("direct"), nb::arg("digest_chunk"), nb::arg("progress"), nb::arg("nice"));
}

}  // namespace flashboot
