// Python's objects for torch's tensors, through the C++ function by which every extension of torch hands out tensors.
//
// It is looked up under its mangled name, which tells its argument: a torch that changes the one has not the other. A
// handle of torch's shims (torch_views.hpp) is the address of an at::Tensor, which is what a reference to one is in
// C++'s ABI.
#pragma once

#include "loaded_library.hpp"

namespace flashboot {

class TorchObjects {
 public:
  // `library`: the path of libtorch_python.so. Raises std::runtime_error when it is not loaded or lacks the function.
  explicit TorchObjects(const std::string& library)
      : wrap_(reinterpret_cast<Wrap>(LoadedLibrary(library).find("_Z16THPVariable_WrapON2at10TensorBaseE"))) {}

  // A new reference to Python's object for the tensor, a PyObject*, or null and Python's error. The handle's tensor is
  // gone from it then, and the handle still the caller's to drop. With the GIL.
  [[nodiscard]] void* take(void* handle) const { return wrap_(handle); }

 private:
  using Wrap = void* (*)(void*);  // PyObject* THPVariable_Wrap(at::TensorBase&&)

  Wrap wrap_;
};

}  // namespace flashboot
