// Python's door to the hot loops. It only converts and checks; the work is in digest.cpp.
//
// What always holds: a buffer stays pinned (Py_buffer) while the GIL is away, so that an mmap can't be closed under a
// running thread; a buffer that is not contiguous is refused with BufferError, never copied in silence.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>

#include "digest.hpp"

namespace nb = nanobind;

namespace {

class PinnedBuffer {
 public:
  explicit PinnedBuffer(nb::handle object) {
    // PyBUF_SIMPLE asks for plain contiguous bytes and does not ask for write access.
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
      throw nb::python_error();
    }
  }
  ~PinnedBuffer() { PyBuffer_Release(&buffer_); }  // runs with the GIL held: declared before gil_scoped_release
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  PinnedBuffer(PinnedBuffer&&) = delete;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  [[nodiscard]] flashboot::Bytes bytes() const noexcept {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

std::uint64_t xxh3_64(nb::handle data) {
  const PinnedBuffer buffer(data);
  const nb::gil_scoped_release unlocked;
  return flashboot::xxh3_64(buffer.bytes());
}

std::uint64_t chunk_digest(nb::handle data) {
  const PinnedBuffer buffer(data);
  const nb::gil_scoped_release unlocked;
  return flashboot::chunk_digest(buffer.bytes());
}

nb::bytes chunk_digests(nb::handle data, std::int64_t chunk_bytes, std::int64_t threads) {
  if (chunk_bytes <= 0 || static_cast<std::size_t>(chunk_bytes) % flashboot::kLeafBytes != 0) {
    throw nb::value_error("chunk_bytes must be a positive multiple of 4096");
  }
  if (threads < 1) {
    throw nb::value_error("threads must be at least 1");
  }
  const PinnedBuffer buffer(data);
  const std::size_t size = flashboot::chunk_count(buffer.bytes().size(), static_cast<std::size_t>(chunk_bytes)) * 8;
  auto table = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!table.is_valid()) {
    throw nb::python_error();
  }
  // Nobody else has seen the new object yet, so that writing into it without the GIL is sound.
  auto* out = reinterpret_cast<std::byte*>(PyBytes_AsString(table.ptr()));
  {
    const nb::gil_scoped_release unlocked;
    flashboot::chunk_digests(buffer.bytes(), static_cast<std::size_t>(chunk_bytes), static_cast<std::size_t>(threads),
                             out);
  }
  return table;
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The host's hot loops in C++.";
  module.def("xxh3_64", &xxh3_64, nb::arg("data"));
  module.def("chunk_digest", &chunk_digest, nb::arg("data"));
  module.def("chunk_digests", &chunk_digests, nb::arg("data"), nb::arg("chunk_bytes"), nb::arg("threads"));
}
