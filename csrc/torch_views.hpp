// Many tensors over one memory in one go, through the C functions that torch promises to keep (its AOTInductor shims).
//
// They are looked up in the libtorch_cpu.so that the process has loaded: nothing here is compiled against torch or
// linked to it. What always holds: a view keeps the storage of its base alive; when one can't be made, none is left.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flashboot {

class TorchShims {
 public:
  using Handle = void*;  // a tensor of torch, one reference

  // `library`: the path of libtorch_cpu.so. Raises std::runtime_error when it is not loaded or lacks a function.
  explicit TorchShims(const std::string& library);

  // A C function of torch. Raises std::runtime_error when it has none of that name.
  [[nodiscard]] void* find(const char* name) const;

  struct View {
    Handle base;  // null: no tensor is made, the handle is null
    std::span<const std::int64_t> sizes;
    std::span<const std::int64_t> strides;
    std::int64_t offset;  // elements of the base
  };

  // The caller owns the handles. Raises std::runtime_error.
  [[nodiscard]] std::vector<Handle> make(std::span<const View> views) const;
  void drop(std::span<const Handle> handles) const noexcept;

 private:
  using Reinterpret = std::int32_t (*)(Handle, std::int64_t, const std::int64_t*, const std::int64_t*, std::int64_t,
                                       Handle*);
  using Delete = std::int32_t (*)(Handle);

  void* library_;
  Reinterpret reinterpret_;
  Delete delete_;
};

}  // namespace flashboot
