#include <nanobind/stl/string.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "layout_table.hpp"
#include "python_list.hpp"
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
    const Dropped dropped{shims_, made};
    return list_of(made.size(), [&](std::size_t i) {
      const nb::handle cls = classes.size() == 0 ? nb::handle(Py_None) : nb::handle(PyList_GET_ITEM(classes.ptr(), i));
      return made[i] == nullptr ? nb::none() : object_of(made[i], cls);
    });
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

}  // namespace

void bind_torch(nb::module_& module) {
  nb::class_<Torch>(module, "Torch")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("cpu"), nb::arg("python"))
      .def("make_views", &Torch::views, nb::arg("table"), nb::arg("bases"), nb::arg("classes"));
}

}  // namespace flashboot
