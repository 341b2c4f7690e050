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
      : library_(library),
        wrap_(reinterpret_cast<Wrap>(library_.find("_Z16THPVariable_WrapON2at10TensorBaseE"))),
        wrap_as_(reinterpret_cast<WrapAs>(library_.find("_Z16THPVariable_WrapRKN2at10TensorBaseEP11_typeobject"))) {}

  // A new reference to Python's object for the tensor, a PyObject*, or null and Python's error. The handle's tensor is
  // gone from it then, and the handle still the caller's to drop. With the GIL.
  [[nodiscard]] void* take(void* handle) const { return wrap_(handle); }
  // The same, of a class of Python's that is derived from torch.Tensor; its constructor is not called.
  [[nodiscard]] void* as(void* handle, void* cls) const { return wrap_as_(handle, cls); }

 private:
  using Wrap = void* (*)(void*);  // PyObject* THPVariable_Wrap(at::TensorBase&&)

  using WrapAs = void* (*)(const void*, void*);  // PyObject* THPVariable_Wrap(const at::TensorBase&, PyTypeObject*)

  LoadedLibrary library_;
  Wrap wrap_;
  WrapAs wrap_as_;
};

}  // namespace flashboot
