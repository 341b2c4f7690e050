#include <nanobind/stl/string.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "bindings.hpp"
#include "delta_window.hpp"
#include "python_buffer.hpp"
#include "strided_copy.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

// Rows of native u64, as array('Q') has them.
template <typename Row>
std::vector<Row> rows_of(nb::handle object, const char* what) {
  const PinnedBuffer buffer(object);
  if (buffer.bytes().size() % sizeof(Row) != 0) {
    throw nb::value_error(what);
  }
  std::vector<Row> rows(buffer.bytes().size() / sizeof(Row));
  if (!rows.empty()) {
    std::memcpy(rows.data(), buffer.bytes().data(), buffer.bytes().size());
  }
  return rows;
}

std::vector<WordRun> runs_of(nb::handle object, std::uint64_t end) {
  std::vector<WordRun> runs = rows_of<WordRun>(object, "runs must be whole rows of 2 x 8 bytes");
  if (runs.empty() || runs.back().end < end) {
    throw nb::value_error("runs that do not cover the arena");
  }
  check_runs(runs, runs.back().end);
  return runs;
}

std::size_t threads_of(std::int64_t threads) {
  if (threads < 1) {
    throw nb::value_error("threads must be at least 1");
  }
  return static_cast<std::size_t>(threads);
}

std::uint64_t offset_of(std::uint64_t offset) {
  if (offset % kDigestChunk != 0) {
    throw nb::value_error("the offset must be at a chunk");
  }
  return offset;
}

nb::bytes bytes_of(std::span<const DeltaRow> rows) {
  static_assert(sizeof(DeltaRow) == 5 * sizeof(std::uint64_t));
  return nb::bytes(reinterpret_cast<const char*>(rows.data()), rows.size_bytes());
}

nb::bytes encode(nb::handle base, nb::handle next, std::uint64_t offset, nb::handle runs, int classes, nb::handle out,
                 std::int64_t threads) {
  const PinnedBuffer before(base), after(next), bodies(out, PyBUF_WRITABLE);
  const std::size_t nbytes = before.bytes().size();
  if (after.bytes().size() != nbytes || classes < 1 || classes > static_cast<int>(kMostClasses) ||
      bodies.bytes().size() / kDigestChunk < chunk_count(nbytes, kDigestChunk)) {
    throw nb::value_error("base and next of the same size, 1 to 16 classes, and room for every chunk are needed");
  }
  const std::vector<WordRun> formats = runs_of(runs, offset_of(offset) + nbytes);
  const std::size_t many = threads_of(threads);
  std::vector<DeltaRow> rows;
  {
    const nb::gil_scoped_release unlocked;
    rows = encode_window(before.bytes(), after.bytes(), offset, formats, static_cast<unsigned>(classes), many,
                         bodies.writable().data());
  }
  return bytes_of(rows);
}

// A window and the bodies that it looks at.
struct BoundWindow {
  PinnedBuffer bodies;
  std::unique_ptr<DeltaWindow> window;

  BoundWindow(nb::handle base, std::uint64_t offset, nb::handle runs, nb::handle rows, nb::handle body, bool reverse,
              std::int64_t threads)
      : bodies(body) {
    const PinnedBuffer memory(base);
    const std::vector<WordRun> formats = runs_of(runs, offset_of(offset) + memory.bytes().size());
    const auto table = rows_of<DeltaRow>(rows, "rows must be whole rows of 5 x 8 bytes");
    const std::size_t many = threads_of(threads);
    const nb::gil_scoped_release unlocked;
    window = std::make_unique<DeltaWindow>(memory.bytes(), offset, formats, table, bodies.bytes(), reverse, many);
  }

  void write(nb::handle object, std::int64_t threads) const {
    const PinnedBuffer memory(object, PyBUF_WRITABLE);
    const std::size_t many = threads_of(threads);
    const nb::gil_scoped_release unlocked;
    window->write(memory.writable(), many);
  }

  void restore(nb::handle object) const {
    const PinnedBuffer memory(object, PyBUF_WRITABLE);
    const nb::gil_scoped_release unlocked;
    window->restore(memory.writable());
  }

  [[nodiscard]] std::size_t changed() const {
    std::size_t changed = 0;
    for (const ChunkPatch& patch : window->patches()) {
      changed += patch.changed();
    }
    return changed;
  }

  [[nodiscard]] nb::tuple reverse() const {
    std::vector<DeltaRow> rows;
    std::vector<std::byte> body;
    for (const ChunkPatch& patch : window->patches()) {
      rows.push_back(patch.reverse_row());
      body.insert(body.end(), patch.reverse().begin(), patch.reverse().end());
    }
    return nb::make_tuple(bytes_of(rows), nb::bytes(reinterpret_cast<const char*>(body.data()), body.size()));
  }
};

nb::bytes bytes_of(const std::vector<std::byte>& bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void bound_put_back(nb::handle object, nb::handle journal) {
  const PinnedBuffer memory(object, PyBUF_WRITABLE), entries(journal);
  const nb::gil_scoped_release unlocked;
  put_back(memory.writable(), entries.bytes());
}

void bound_strided_copy(nb::handle target, nb::handle source, std::uint64_t to, std::uint64_t from, std::uint64_t width,
                        nb::handle loops) {
  const PinnedBuffer writable(target, PyBUF_WRITABLE), bytes(source);
  const auto rows = rows_of<CopyLoop>(loops, "loops must be whole rows of 3 x 8 bytes");
  const nb::gil_scoped_release unlocked;
  strided_copy(writable.writable(), bytes.bytes(), to, from, width, rows);
}

const char* name_of(DeltaFault fault) {
  switch (fault) {
    case DeltaFault::kBase:
      return "base";
    case DeltaFault::kResult:
      return "result";
    default:
      return "malformed";
  }
}

void translate_broken(const std::exception_ptr& pointer, void* type) {
  try {
    std::rethrow_exception(pointer);
  } catch (const DeltaChunkBroken& broken) {
    const nb::object arguments = nb::make_tuple(name_of(broken.broken.fault), broken.chunk, broken.broken.what);
    PyErr_SetObject(static_cast<PyObject*>(type), arguments.ptr());
  }
}

}  // namespace

void bind_delta(nb::module_& module) {
  PyObject* const type = PyErr_NewException("flashboot_agent._native.DeltaBroken", nullptr, nullptr);
  const auto broken = nb::steal<nb::object>(type);
  if (!broken.is_valid()) {
    throw nb::python_error();
  }
  module.attr("DeltaBroken") = broken;
  nb::register_exception_translator(&translate_broken, broken.ptr());  // which the module keeps alive

  nb::list bytes;
  for (const Words& words : kWordFormats) {
    bytes.append(words.bytes);
  }
  module.attr("DELTA_WORD_BYTES") = nb::tuple(bytes);
  module.attr("DELTA_KERNEL") = best_delta_kernel().name;

  module.def("delta_encode", &encode, nb::arg("base"), nb::arg("next"), nb::arg("offset"), nb::arg("runs"),
             nb::arg("classes"), nb::arg("out"), nb::kw_only(), nb::arg("threads"));

  nb::class_<BoundWindow>(module, "DeltaWindow")
      .def(nb::init<nb::handle, std::uint64_t, nb::handle, nb::handle, nb::handle, bool, std::int64_t>(),
           nb::arg("base"), nb::arg("offset"), nb::arg("runs"), nb::arg("rows"), nb::arg("bodies"), nb::kw_only(), nb::arg("reverse"),
           nb::arg("threads"))
      .def("write", &BoundWindow::write, nb::arg("memory"), nb::kw_only(), nb::arg("threads"))
      .def("restore", &BoundWindow::restore, nb::arg("memory"))
      .def_prop_ro("changed", &BoundWindow::changed)
      .def("reverse", &BoundWindow::reverse)
      .def("journal", [](const BoundWindow& bound) { return bytes_of(bound.window->journal()); });
  module.def("strided_copy", &bound_strided_copy, nb::arg("target"), nb::arg("source"), nb::arg("to"),
             nb::arg("from_"), nb::arg("width"), nb::arg("loops"));
  module.def("delta_put_back", &bound_put_back, nb::arg("memory"), nb::arg("journal"));
}

}  // namespace flashboot
