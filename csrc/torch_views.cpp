#include "torch_views.hpp"

#include <cstddef>
#include <stdexcept>

namespace flashboot {

TorchShims::TorchShims(const std::string& library)
    : library_(library),
      reinterpret_(reinterpret_cast<Reinterpret>(library_.find("aoti_torch__reinterpret_tensor"))),
      delete_(reinterpret_cast<Delete>(library_.find("aoti_torch_delete_tensor_object"))) {}

std::vector<TorchShims::Handle> TorchShims::make(std::span<const View> views) const {
  std::vector<Handle> made(views.size(), nullptr);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const View& view = views[i];
    if (view.base == nullptr) {
      continue;
    }
    const auto dims = static_cast<std::int64_t>(view.sizes.size());
    if (reinterpret_(view.base, dims, view.sizes.data(), view.strides.data(), view.offset, &made[i]) != 0) {
      made[i] = nullptr;
      drop(made);
      throw std::runtime_error("torch could not make view " + std::to_string(i) + " of " +
                               std::to_string(views.size()));
    }
  }
  return made;
}

void TorchShims::drop(std::span<const Handle> handles) const noexcept {
  for (const Handle handle : handles) {
    if (handle != nullptr) {
      (void)delete_(handle);  // can fail only for memory that is none of torch's
    }
  }
}

std::vector<TorchShims::View> views_of(const LayoutTable& table, std::span<const TorchShims::Handle> bases) {
  std::vector<TorchShims::View> views;
  views.reserve(table.tensors().size());
  for (const LayoutTable::Tensor& tensor : table.tensors()) {
    const LayoutTable::Form& form = table.forms()[tensor.form];
    const std::uint64_t elements = table.byte_offset(tensor) / kLayoutDtypes[form.dtype].bytes;
    views.push_back({table.in_place(tensor) ? bases[form.dtype] : nullptr, table.sizes(form), table.strides(form),
                     static_cast<std::int64_t>(elements)});
  }
  return views;
}

}  // namespace flashboot
