#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "advance.hpp"
#include "bindings.hpp"
#include "copier.hpp"
#include "frames.hpp"
#include "puller.hpp"
#include "python_buffer.hpp"
#include "server.hpp"
#include "thread_nice.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

const char* name_of(const Advance& self) {
  switch (self.state) {
    case State::kDone:
      return "done";
    case State::kGoing:
      return "going";
    case State::kDiffers:
      return "differs";
    case State::kOverdue:
      return "overdue";
    case State::kTrouble:
      return "trouble";
  }
  throw std::logic_error("an advance without a state");
}

// What a lane lies in, pinned for as long as somebody fills it.
struct LaneBuffers {
  LaneBuffers(nb::handle memory, nb::handle digests) : memory_(memory, PyBUF_WRITABLE), digests_(digests) {}
  PinnedBuffer memory_;
  PinnedBuffer digests_;
};

class BoundPuller : LaneBuffers {
 public:
  BoundPuller(std::shared_ptr<Stream> stream, std::shared_ptr<Marks> marks, std::size_t lane, nb::handle memory,
              nb::handle digests, const PullSettings& settings, int nice)
      : LaneBuffers(memory, digests), nice_(nice),
        puller_(std::move(stream), Lane(std::move(marks), lane, memory_.writable(), digests_.bytes()), settings) {}

  Advance advance(double patience) {
    be_nice(nice_);
    return puller_.advance(seconds(patience));
  }

 private:
  int nice_;
  LanePuller puller_;
};

void make_puller(BoundPuller* self, std::shared_ptr<Stream> stream, std::shared_ptr<Marks> marks, std::size_t lane,
                 nb::handle memory, nb::handle digests, std::uint32_t request_bytes, std::size_t in_flight, double poll,
                 double silence, double overdue_floor, int nice) {
  const PullSettings settings{.request_bytes = request_bytes,
                              .in_flight = in_flight,
                              .poll = seconds(poll),
                              .silence = seconds(silence),
                              .overdue_floor = seconds(overdue_floor)};
  new (self) BoundPuller(std::move(stream), std::move(marks), lane, memory, digests, settings, nice);
}

class BoundCopier : LaneBuffers {
 public:
  BoundCopier(std::shared_ptr<Marks> source, nb::handle source_memory, std::shared_ptr<Marks> marks, std::size_t lane,
              nb::handle memory, nb::handle digests, std::size_t threads, int nice)
      : LaneBuffers(memory, digests), source_memory_(source_memory), nice_(nice),
        copier_(std::move(source), source_memory_.bytes(),
                Lane(std::move(marks), lane, memory_.writable(), digests_.bytes()), threads) {}

  Advance advance(double patience) {
    be_nice(nice_);  // the threads that it starts inherit it
    return copier_.advance(seconds(patience));
  }

 private:
  PinnedBuffer source_memory_;
  int nice_;
  LaneCopier copier_;
};

void bound_serve(Stream& stream, Marks& marks, nb::handle memory, Served& served,
                 const std::vector<std::shared_ptr<EgressBucket>>& buckets, double idle, double silence, double reply,
                 int nice) {
  const PinnedBuffer pinned(memory);
  const nb::gil_scoped_release unlocked;
  be_nice(nice);
  serve(stream, marks, pinned.bytes(), served, buckets,
        {.idle = seconds(idle), .silence = seconds(silence), .reply = seconds(reply)});
}

}  // namespace

void bind_clone(nb::module_& module) {
  module.attr("SERVE_LIMIT") = kMaxPull;
  module.attr("DIGEST_CHUNK") = kDigestChunk;
  const nb::call_guard<nb::gil_scoped_release> unlocked;

  module.def("serve", &bound_serve, nb::arg("stream"), nb::arg("marks"), nb::arg("memory"), nb::arg("served"),
             nb::arg("buckets"), nb::kw_only(), nb::arg("idle"), nb::arg("silence"), nb::arg("reply"), nb::arg("nice"));

  nb::class_<Advance>(module, "Advance")
      .def_prop_ro("state", &name_of)
      .def_ro("offset", &Advance::offset)
      .def_ro("parent_end", &Advance::parent_end)
      .def_ro("starved", &Advance::starved)
      .def_ro("bytes_in", &Advance::bytes_in)
      .def_ro("silent_seconds", &Advance::silent_seconds)
      .def_prop_ro("trouble",
                   [](const Advance& self) { return nb::bytes(self.trouble.data(), self.trouble.size()); });

  nb::class_<BoundPuller>(module, "LanePuller")
      .def("__init__", &make_puller, nb::arg("stream"), nb::arg("marks"), nb::arg("lane"), nb::arg("memory"),
           nb::arg("digests"), nb::kw_only(), nb::arg("request_bytes"), nb::arg("in_flight"), nb::arg("poll"),
           nb::arg("silence"), nb::arg("overdue_floor"), nb::arg("nice"))
      .def("advance", &BoundPuller::advance, nb::arg("seconds"), unlocked);

  nb::class_<BoundCopier>(module, "LaneCopier")
      .def(nb::init<std::shared_ptr<Marks>, nb::handle, std::shared_ptr<Marks>, std::size_t, nb::handle, nb::handle,
                    std::size_t, int>(),
           nb::arg("source"), nb::arg("source_memory"), nb::arg("marks"), nb::arg("lane"), nb::arg("memory"),
           nb::arg("digests"), nb::kw_only(), nb::arg("threads"), nb::arg("nice"))
      .def("advance", &BoundCopier::advance, nb::arg("seconds"), unlocked);
}

}  // namespace flashboot
