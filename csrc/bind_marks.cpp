#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "egress.hpp"
#include "errors.hpp"
#include "marks.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

using Pairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

void make_marks(Marks* self, int record_fd, std::uint64_t nbytes, const Pairs& bounds) {
  std::vector<Bounds> lanes;
  for (const auto& [start, end] : bounds) {
    lanes.push_back({start, end});
  }
  new (self) Marks(record_fd, nbytes, std::move(lanes));
}

Counter counter_of(std::size_t word) {
  if (word < static_cast<std::size_t>(Counter::kBytesIn) || word > static_cast<std::size_t>(Counter::kRefetched)) {
    throw nb::value_error("counters are the words 2, 3 and 4");
  }
  return static_cast<Counter>(word);
}

}  // namespace

void bind_marks(nb::module_& module) {
  nb::exception<MarksClosed>(module, "MarksClosed");

  const nb::call_guard<nb::gil_scoped_release> unlocked;
  nb::class_<Marks>(module, "Marks")
      .def("__init__", &make_marks, nb::arg("record_fd"), nb::arg("nbytes"), nb::arg("bounds"))
      .def_prop_ro("nbytes", &Marks::nbytes)
      .def(
          "bounds",
          [](const Marks& self, std::size_t lane) {
            const Bounds bounds = self.bounds(lane);
            return nb::make_tuple(bounds.start, bounds.end);
          },
          nb::arg("lane"))
      .def("verified", &Marks::verified, nb::arg("lane"))
      .def("received", &Marks::received, nb::arg("lane"))
      .def("set_verified", &Marks::set_verified, nb::arg("lane"), nb::arg("offset"), unlocked)
      .def("set_received", &Marks::set_received, nb::arg("lane"), nb::arg("offset"), unlocked)
      .def("fill", &Marks::fill, unlocked)
      .def_prop_ro("total_verified", &Marks::total_verified)
      .def("valid_end", &Marks::valid_end, nb::arg("offset"))
      .def(
          "wait_valid",
          [](Marks& self, std::uint64_t offset, std::uint64_t end, double patience) {
            return self.wait_valid(offset, end, seconds(patience));
          },
          nb::arg("offset"), nb::arg("end"), nb::arg("seconds"), unlocked)
      .def(
          "add", [](Marks& self, std::size_t word, std::uint64_t value) { return self.add(counter_of(word), value); },
          nb::arg("counter"), nb::arg("value"))
      .def(
          "counter", [](const Marks& self, std::size_t word) { return self.counter(counter_of(word)); },
          nb::arg("counter"))
      .def_prop_ro("generation", &Marks::generation)
      .def_prop_ro("closed", &Marks::closed)
      .def("close", &Marks::close, unlocked);

  module.attr("BYTES_IN") = static_cast<std::size_t>(Counter::kBytesIn);
  module.attr("BYTES_OUT") = static_cast<std::size_t>(Counter::kBytesOut);
  module.attr("REFETCHED") = static_cast<std::size_t>(Counter::kRefetched);

  nb::class_<EgressBucket>(module, "EgressBucket")
      .def(nb::init<std::uint64_t>(), nb::arg("rate"))
      .def_prop_rw("rate", &EgressBucket::rate, &EgressBucket::set_rate)
      .def("take", [](EgressBucket& self, std::size_t bytes) { return to_seconds(self.take(bytes)); }, nb::arg("bytes"));

  nb::class_<Served>(module, "Served")
      .def(nb::init<>())
      .def_prop_ro("bytes_out", &Served::bytes_out)
      .def_prop_ro("last_byte_age", [](const Served& self) { return to_seconds(self.last_byte_age()); });
}

}  // namespace flashboot
