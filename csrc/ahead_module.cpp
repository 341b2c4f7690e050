// The module _ahead: what an engine needs that attaches to plain tensors without trouble, and nothing else, since making
// the functions of a large module takes longer than a thousand tensors. _ahead.pyi is its contract.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent_question.hpp"
#include "arena_ahead.hpp"
#include "errors.hpp"
#include "present_arenas.hpp"
#include "python_text.hpp"
#include "torch_objects.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

std::string_view text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e6) * 1000));
}

// While one lives, this thread has not Python's lock. A thread that asks for it back when the interpreter ends is ended
// by Python, which no frame of C++ lives through: it stays away then, as it will from Python 3.14 on.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    while (ending()) {
      (void)pause();
    }
    PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  Unlocked(Unlocked&&) = delete;
  Unlocked& operator=(Unlocked&&) = delete;

 private:
  static bool ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
  }

  PyThreadState* state_;
};

class Ahead {
 public:
  explicit Ahead(const nb::bytes& identity) : identity_(text_of(identity)) {}
  ~Ahead() { close_answer(); }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  Ahead(Ahead&&) = delete;
  Ahead& operator=(Ahead&&) = delete;

  bool ask(const std::string& path, const nb::bytes& hello, double seconds) {
    const std::string said(text_of(hello));
    const Unlocked unlocked;
    answer_ = question_.ask(path, said, milliseconds(seconds));
    if (!answer_ || !arena_.take(answer_->packet, answer_->descriptors, identity_)) {
      return false;
    }
    answer_.reset();
    return true;
  }

  nb::object answer() {
    const int connection = answer_ ? question_.hand_over() : -1;
    if (connection < 0) {
      close_answer();
      return nb::none();
    }
    const AgentQuestion::Answer answer = *std::exchange(answer_, std::nullopt);
    nb::list descriptors;
    for (const int descriptor : answer.descriptors) {
      descriptors.append(descriptor);
    }
    return nb::make_tuple(connection, nb::bytes(answer.packet.data(), answer.packet.size()), descriptors);
  }

  bool take(const std::string& arena, std::uint64_t nbytes, const std::string& digest, int descriptor,
            const nb::bytes& document) {
    std::string text(text_of(document));
    const Unlocked unlocked;
    return arena_.take({arena, nbytes, digest, {}}, descriptor, std::move(text), identity_);
  }

  bool make(const std::string& cpu, const std::string& python) {
    const Unlocked unlocked;
    if (!arena_.make(cpu, stop_)) {
      return false;
    }
    objects_.emplace(python);
    names_ = PreparedNames(arena_.names());
    of_tensor_.assign(arena_.table().tensors().size(), nullptr);
    memory_ = std::make_unique<PresentArenas>(arena_.names().text.size() + kTensorAndName * names_.size());
    return true;
  }

  bool fill(nb::dict into) {
    if (into.size() != 0) {
      throw nb::value_error("an empty dictionary is wanted");
    }
    const std::unique_ptr<TorchArena> tensors = arena_.tensors();
    if (tensors == nullptr || memory_ == nullptr) {
      return false;
    }
    put(tensors->handles(), into);
    memory_ = nullptr;
    of_tensor_ = {};
    if (into.size() != names_.size()) {  // two read the same, such as a.b and c beside a and b.c
      into.clear();
      return false;
    }
    arena_.close();
    return true;
  }

  void stop() {
    stop_.store(true);
    question_.stop();
  }

  bool tell(const nb::bytes& message) { return question_.tell(text_of(message)); }
  [[nodiscard]] int fileno() const { return question_.descriptor(); }
  int connection() { return question_.hand_over(); }
  int descriptor() { return arena_.hand_over(); }
  nb::bytes document() const { return nb::bytes(arena_.document().data(), arena_.document().size()); }
  [[nodiscard]] const AgentOffer& offer() const { return arena_.offer(); }

 private:
  // Bytes that Python takes for a tensor's object and a name's, its characters aside.
  static constexpr std::size_t kTensorAndName = 192;
  static constexpr std::size_t kAhead = 8;
  static constexpr std::size_t kLines = 3;  // of a tensor of torch

  void put(std::span<const TorchShims::Handle> made, nb::dict& into) {
    const PresentArenas::Lent lent(*memory_);
    std::vector<PyObject*>& objects = of_tensor_;
    const auto& bindings = arena_.table().bindings();
    for (std::size_t i = 0; i < bindings.size(); ++i) {
      if (i + kAhead < bindings.size()) {  // what is looked at in a few rounds was written by another core
        const char* const next = *static_cast<const char**>(made[bindings[i + kAhead].tensor]);
        for (std::size_t line = 0; line < kLines; ++line) {
          __builtin_prefetch(next + line * 64, 1);
        }
      }
      const std::uint32_t tensor = bindings[i].tensor;
      nb::object object = objects[tensor] != nullptr ? nb::borrow(objects[tensor]) : object_of(made[tensor]);
      objects[tensor] = object.ptr();
      const nb::object name = nb::steal(names_.make(i));
      if (!name.is_valid() || PyDict_SetItem(into.ptr(), name.ptr(), object.ptr()) != 0) {
        throw nb::python_error();
      }
    }
  }

  nb::object object_of(TorchShims::Handle handle) const {
    auto* made = static_cast<PyObject*>(objects_->take(handle));
    if (made == nullptr) {
      throw nb::python_error();
    }
    return nb::steal(made);
  }

  void close_answer() {
    if (answer_) {
      for (const int descriptor : answer_->descriptors) {
        (void)::close(descriptor);
      }
      answer_.reset();
    }
  }

  std::string identity_;
  std::atomic<bool> stop_ = false;
  AgentQuestion question_;
  std::optional<AgentQuestion::Answer> answer_;
  ArenaAhead arena_;
  std::optional<TorchObjects> objects_;
  PreparedNames names_;
  std::vector<PyObject*> of_tensor_;  // by number, which the dictionary holds; present before it is needed
  std::unique_ptr<PresentArenas> memory_;
};

}  // namespace
}  // namespace flashboot

NB_MODULE(_ahead, module) {
  using flashboot::Ahead;
  nanobind::set_leak_warnings(false);  // as in module.cpp
  nb::class_<Ahead>(module, "Ahead")
      .def(nb::init<const nb::bytes&>(), nb::arg("identity"))
      .def("ask", &Ahead::ask, nb::arg("path"), nb::arg("hello"), nb::arg("seconds"))
      .def("answer", &Ahead::answer)
      .def("take", &Ahead::take, nb::arg("arena"), nb::arg("nbytes"), nb::arg("digest"), nb::arg("descriptor"),
           nb::arg("document"))
      .def("make", &Ahead::make, nb::arg("cpu"), nb::arg("python"))
      .def("fill", &Ahead::fill, nb::arg("into"))
      .def("tell", &Ahead::tell, nb::arg("message"))
      .def("fileno", &Ahead::fileno)
      .def("connection", &Ahead::connection)
      .def("descriptor", &Ahead::descriptor)
      .def("document", &Ahead::document)
      .def("stop", &Ahead::stop)
      .def_prop_ro("arena", [](const Ahead& ahead) { return ahead.offer().arena; })
      .def_prop_ro("nbytes", [](const Ahead& ahead) { return ahead.offer().bytes; })
      .def_prop_ro("digest", [](const Ahead& ahead) { return ahead.offer().digest; });
}
