// A Python buffer held for as long as C++ looks at it.
//
// What always holds: a buffer stays pinned (Py_buffer) while the GIL is away, so that an mmap can't be closed under a
// running thread; a buffer that is not contiguous is refused with BufferError, never copied in silence.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>

namespace flashboot {

class PinnedBuffer {
 public:
  // `flags`: PyBUF_SIMPLE asks for plain contiguous bytes and does not ask for write access, PyBUF_WRITABLE does.
  explicit PinnedBuffer(nanobind::handle object, int flags = PyBUF_SIMPLE) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) {
      throw nanobind::python_error();
    }
  }
  ~PinnedBuffer() { PyBuffer_Release(&buffer_); }  // runs with the GIL held: declared before gil_scoped_release
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  PinnedBuffer(PinnedBuffer&&) = delete;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }
  // Of a buffer that was asked for with PyBUF_WRITABLE.
  [[nodiscard]] std::span<std::byte> writable() const noexcept {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

}  // namespace flashboot
