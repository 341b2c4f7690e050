// Many tensors over one memory in one go, through the C functions that torch promises to keep (its AOTInductor shims).
//
// They are looked up in the libtorch_cpu.so that the process has loaded: nothing here is compiled against torch or
// linked to it. What always holds: a view keeps the storage of its base alive; when one can't be made, none is left.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout_table.hpp"
#include "loaded_library.hpp"

namespace flashboot {

class TorchShims {
 public:
  using Handle = void*;  // a tensor of torch, one reference

  // `library`: the path of libtorch_cpu.so. Raises std::runtime_error when it is not loaded or lacks a function.
  explicit TorchShims(const std::string& library);

  [[nodiscard]] const LoadedLibrary& library() const noexcept { return library_; }

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

  LoadedLibrary library_;
  Reinterpret reinterpret_;
  Delete delete_;
};

// For each tensor of the table that lies over the arena's own bytes a view of the base of its dtype, by its number.
[[nodiscard]] std::vector<TorchShims::View> views_of(const LayoutTable& table, std::span<const TorchShims::Handle> bases);

}  // namespace flashboot
