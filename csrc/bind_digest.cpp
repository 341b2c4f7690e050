#include <cstdint>

#include "bindings.hpp"
#include "digest.hpp"
#include "python_buffer.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

std::uint64_t bound_xxh3_64(nb::handle data) {
  const PinnedBuffer buffer(data);
  const nb::gil_scoped_release unlocked;
  return xxh3_64(buffer.bytes());
}

std::uint64_t bound_chunk_digest(nb::handle data) {
  const PinnedBuffer buffer(data);
  const nb::gil_scoped_release unlocked;
  return chunk_digest(buffer.bytes());
}

nb::bytes bound_chunk_digests(nb::handle data, std::int64_t chunk_bytes, std::int64_t threads) {
  if (chunk_bytes <= 0 || static_cast<std::size_t>(chunk_bytes) % kLeafBytes != 0) {
    throw nb::value_error("chunk_bytes must be a positive multiple of 4096");
  }
  if (threads < 1) {
    throw nb::value_error("threads must be at least 1");
  }
  const PinnedBuffer buffer(data);
  const std::size_t size = chunk_count(buffer.bytes().size(), static_cast<std::size_t>(chunk_bytes)) * 8;
  auto table = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!table.is_valid()) {
    throw nb::python_error();
  }
  // Nobody else has seen the new object yet, so that writing into it without the GIL is sound.
  auto* out = reinterpret_cast<std::byte*>(PyBytes_AsString(table.ptr()));
  {
    const nb::gil_scoped_release unlocked;
    chunk_digests(buffer.bytes(), static_cast<std::size_t>(chunk_bytes), static_cast<std::size_t>(threads), out);
  }
  return table;
}

}  // namespace

void bind_digest(nb::module_& module) {
  module.def("xxh3_64", &bound_xxh3_64, nb::arg("data"));
  module.def("chunk_digest", &bound_chunk_digest, nb::arg("data"));
  module.def("chunk_digests", &bound_chunk_digests, nb::arg("data"), nb::arg("chunk_bytes"), nb::arg("threads"));
}

}  // namespace flashboot
