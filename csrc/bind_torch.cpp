#include <nanobind/stl/string.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "layout_table.hpp"
#include "present_arenas.hpp"
#include "python_list.hpp"
#include "python_names.hpp"
#include "torch_arena.hpp"
#include "torch_objects.hpp"
#include "torch_views.hpp"

namespace nb = nanobind;

namespace flashboot {
namespace {

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

// torch's functions, once it is imported.
class Torch {
 public:
  Torch(const std::string& cpu, const std::string& python) : shims_(cpu), objects_(python) {}

  nb::list views(const LayoutTable& table, const nb::list& bases, const nb::list& classes) const {
    if (bases.size() != kLayoutDtypes.size()) {
      throw nb::value_error("make_views wants a base per dtype");
    }
    if (classes.size() != 0 && classes.size() != table.tensors().size()) {
      throw nb::value_error("make_views wants a class per tensor, or none at all");
    }
    std::vector<TorchShims::Handle> base_of;
    for (const nb::handle base : bases) {
      base_of.push_back(handle_in(base));
    }
    std::vector<TorchShims::Handle> made;
    {
      const nb::gil_scoped_release unlocked;
      made = shims_.make(views_of(table, base_of));
    }
    return taken(made, classes);
  }

  // A new object for the tensor of a handle, which stays to be dropped. `cls`: other than torch.Tensor, or None.
  nb::object object_of(TorchShims::Handle handle, nb::handle cls = Py_None) const {
    if (!cls.is_none() && PyType_Check(cls.ptr()) == 0) {
      throw nb::type_error("a class is wanted");
    }
    void* const made = cls.is_none() ? objects_.take(handle) : objects_.as(handle, cls.ptr());
    auto* object = static_cast<PyObject*>(made);
    if (object == nullptr) {
      throw nb::python_error();
    }
    return nb::steal(object);
  }

  // Takes over the handles. None for those that are null.
  nb::list taken(const std::vector<TorchShims::Handle>& made, const nb::list& classes = {}) const {
    const Dropped dropped{shims_, made};
    return list_of(made.size(), [&](std::size_t i) {
      const nb::handle cls = classes.size() == 0 ? nb::handle(Py_None) : nb::handle(PyList_GET_ITEM(classes.ptr(), i));
      return made[i] == nullptr ? nb::none() : object_of(made[i], cls);
    });
  }

  // As `taken`, by name and into `into`; none of them is null.
  void taken_by_name(const std::vector<TorchShims::Handle>& made, const LayoutTable& table,
                     const LayoutTable::Names& names, nb::dict& into) const {
    const Dropped dropped{shims_, made};
    std::vector<PyObject*> objects(made.size());  // of those that have one, which `into` holds
    put_by_name(table, names, into, [&](std::size_t tensor) {
      if (objects[tensor] != nullptr) {
        return nb::borrow(objects[tensor]);
      }
      nb::object object = object_of(made[tensor]);
      objects[tensor] = object.ptr();
      return object;
    });
  }

 private:
  // Handles that go at the end of the scope.
  struct Dropped {
    const TorchShims& shims;
    const std::vector<TorchShims::Handle>& handles;
    ~Dropped() { shims.drop(handles); }
  };

  TorchShims shims_;
  TorchObjects objects_;
};

// From a thread of its own: waits for torch, then makes what it can make without it being imported.
class Ahead {
 public:
  void make(const std::string& library, const LayoutTable& table, int descriptor) {
    const nb::gil_scoped_release unlocked;
    if (!wait_for_library(library, stop_)) {
      return;
    }
    arena_ = std::make_unique<TorchArena>(library, table, descriptor);
    if (table.all_in_place()) {
      names_ = table.full_names();
      objects_ = std::make_unique<PresentArenas>(names_.text.size() + kTensorAndName * names_.ends.size());
    }
  }
  void stop() noexcept { stop_.store(true); }
  nb::object take(const Torch& torch) {
    if (arena_ == nullptr) {
      return nb::none();
    }
    return torch.taken(std::exchange(arena_, nullptr)->take());
  }
  bool take_by_name(const Torch& torch, const LayoutTable& table, nb::dict into) {
    if (arena_ == nullptr || objects_ == nullptr) {
      return false;
    }
    const std::unique_ptr<PresentArenas> objects = std::exchange(objects_, nullptr);
    const PresentArenas::Lent lent(*objects);
    torch.taken_by_name(std::exchange(arena_, nullptr)->take(), table, names_, into);
    return true;
  }

 private:
  // Bytes that Python takes for a tensor's object and a name's, its characters aside.
  static constexpr std::size_t kTensorAndName = 192;

  std::atomic<bool> stop_ = false;
  std::unique_ptr<TorchArena> arena_;
  LayoutTable::Names names_;
  std::unique_ptr<PresentArenas> objects_;  // of tensors that are all over the arena's own bytes
};

}  // namespace

void bind_torch(nb::module_& module) {
  nb::class_<Torch>(module, "Torch")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("cpu"), nb::arg("python"))
      .def("make_views", &Torch::views, nb::arg("table"), nb::arg("bases"), nb::arg("classes"));
  nb::class_<Ahead>(module, "TorchAhead")
      .def(nb::init<>())
      .def("make", &Ahead::make, nb::arg("library"), nb::arg("table"), nb::arg("descriptor"))
      .def("stop", &Ahead::stop)
      .def("take", &Ahead::take, nb::arg("torch"))
      .def("take_by_name", &Ahead::take_by_name, nb::arg("torch"), nb::arg("table"), nb::arg("into"));
}

}  // namespace flashboot
