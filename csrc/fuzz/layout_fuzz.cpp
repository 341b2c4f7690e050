// Any bytes are sound tables, in which every index leads somewhere and every element has its bytes, or a refusal in
// words of ASCII.
#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "layout_table.hpp"
#include "require.hpp"

namespace {

using namespace flashboot;

constexpr std::uint64_t kArena = 1 << 20;

void require_sound(const LayoutTable& table) {
  std::uint64_t end = 0;
  for (const LayoutTable::Storage& storage : table.storages()) {
    require(storage.offset % kLayoutAlignment == 0 && storage.offset >= end, "a storage inside another");
    end = storage.offset + storage.bytes;
    require(end <= kArena && (end <= kArena / 2 || storage.bytes == 0 || storage.offset >= kArena / 2),
            "a storage outside of its segment");
  }
  for (const LayoutTable::Tensor& tensor : table.tensors()) {
    const LayoutTable::Form& form = table.forms().at(tensor.form);
    unsigned __int128 last = tensor.offset;
    bool some = true;
    for (std::size_t i = 0; i < form.dims; ++i) {
      const auto size = static_cast<std::uint64_t>(table.sizes(form)[i]);
      some = some && size != 0;
      const auto stride = static_cast<std::uint64_t>(table.strides(form)[i]);
      last += static_cast<unsigned __int128>(size == 0 ? 0 : size - 1) * stride;
    }
    const unsigned __int128 behind = (some ? last + 1 : tensor.offset) * kLayoutDtypes.at(form.dtype).bytes;
    require(behind <= table.storages().at(tensor.storage).bytes, "an element without bytes");
  }
  const std::vector<std::string> paths = table.paths();
  std::set<std::pair<std::string, std::string>> places;
  for (const LayoutTable::Binding& binding : table.bindings()) {
    require(binding.tensor < table.tensors().size(), "a binding without a tensor");
    const bool fresh = places.emplace(paths.at(binding.module), table.name(binding.attribute)).second;
    require(fresh, "a place that is there twice");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    require_sound(LayoutTable(std::as_bytes(std::span(data, size)), {kArena / 2, kArena}, 2));
  } catch (const Malformed& error) {
    const std::string message = error.what();
    require(std::ranges::all_of(message, [](char c) { return c >= ' ' && c < 0x7f; }), "a message that does not print");
  }
  return 0;
}
