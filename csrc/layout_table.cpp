#include "layout_table.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "errors.hpp"
#include "layout_columns.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

constexpr std::uint64_t kMostElements = kLayoutMostBytes;  // no element is smaller than a byte

// The later of two entries with the same key; none when all keys differ.
std::optional<std::size_t> repeated(const std::vector<std::uint64_t>& keys) {
  if (std::ranges::adjacent_find(keys, std::ranges::greater_equal()) == keys.end()) {
    return std::nullopt;  // rising, as bindings of a model are
  }
  std::vector<std::uint64_t> sorted(keys);
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) {
    return std::nullopt;
  }
  const auto first = std::ranges::find(keys, *twice);
  return static_cast<std::size_t>(std::find(first + 1, keys.end(), *twice) - keys.begin());
}

// From the first element to behind the last; none when that is, or the elements are, more than any arena has.
std::optional<std::uint64_t> extent_of(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  unsigned __int128 elements = 1;
  unsigned __int128 last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(sizes[i]);
    elements *= size;
    last += static_cast<unsigned __int128>(size == 0 ? 0 : size - 1) * static_cast<std::uint64_t>(strides[i]);
    if (elements > kMostElements || last >= kMostElements) {  // each below 2^50 before this step and 2^100 after it
      return std::nullopt;
    }
  }
  return elements == 0 ? 0 : static_cast<std::uint64_t>(last) + 1;
}

std::uint64_t pair_of(std::uint64_t high, std::uint64_t low) { return high << 32 | low; }

}  // namespace

LayoutTable::LayoutTable(std::span<const std::byte> body, std::vector<std::uint64_t> segment_ends,
                         std::uint64_t attribute_sets) {
  if (segment_ends.empty() || !std::ranges::is_sorted(segment_ends) || segment_ends.back() > kLayoutMostBytes) {
    throw Malformed("the segments are none, in no order, or beyond 2^50 bytes");
  }
  arena_bytes_ = segment_ends.back();
  ColumnReader reader(body);
  const auto count = [&reader](std::string_view what) {
    const std::uint64_t value = reader.number(4, what);
    if (value > kLayoutMost) {
      throw Malformed(std::to_string(value) + " " + std::string(what) + "; at most " + std::to_string(kLayoutMost));
    }
    return value;
  };
  const std::uint64_t names = count("names");
  const std::uint64_t forms = count("forms");
  const std::uint64_t dims = count("dims");
  const std::uint64_t modules = count("modules");
  const std::uint64_t rows = count("storage rows");
  const std::uint64_t storages = count("storages");
  const std::uint64_t tensors = count("tensors");
  const std::uint64_t bindings = count("bindings");
  read_names(reader, names);
  read_forms(reader, forms, dims, attribute_sets);
  read_modules(reader, modules);
  read_storages(reader, rows, storages, segment_ends);
  read_tensors(reader, tensors);
  read_bindings(reader, bindings);
  reader.end();
}

std::string_view LayoutTable::name(std::size_t number) const noexcept {
  const std::uint32_t begin = number == 0 ? 0 : name_ends_[number - 1];
  return std::string_view(text_).substr(begin, name_ends_[number] - begin);
}

void LayoutTable::read_names(ColumnReader& reader, std::uint64_t count) {
  std::uint32_t end = 0;
  for (const std::uint64_t length : reader.column(count, kLayoutMostText + 1, "name length")) {
    name_ends_.push_back(end += static_cast<std::uint32_t>(length));  // 2^18 lengths of 2^10 fit
  }
  const auto text = reader.take(end, "names");
  text_.assign(reinterpret_cast<const char*>(text.data()), text.size());
  std::vector<std::string_view> sorted;
  for (std::size_t i = 0; i < count; ++i) {
    if (name(i).empty() || first_not_utf8(name(i))) {
      refuse_entry("name", i, " is empty or no text");
    }
    sorted.push_back(name(i));
  }
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    throw Malformed("the name " + quoted(*twice) + " is there twice");
  }
}

void LayoutTable::read_forms(ColumnReader& reader, std::uint64_t count, std::uint64_t dims,
                             std::uint64_t attribute_sets) {
  const auto dtype = reader.column(count, kLayoutDtypes.size(), "dtype of form");
  const auto rank = reader.column(count, kLayoutMostDims + 1, "rank of form");
  const auto cls = reader.column(count, names(), "class of form");
  const auto parameter = reader.column(count, 2, "parameter flag of form");
  const auto attributes = reader.column(count, attribute_sets, "attributes of form");
  const auto sizes = reader.column(dims, kMostElements, "size of dim");
  const auto strides = reader.column(dims, kMostElements, "stride of dim");
  sizes_.assign(sizes.begin(), sizes.end());
  strides_.assign(strides.begin(), strides.end());
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (rank[i] > dims - first) {
      refuse_entry("form", i, " has more dims than there are");
    }
    const auto shape = std::span(sizes_).subspan(first, rank[i]);
    const auto extent = extent_of(shape, std::span(strides_).subspan(first, rank[i]));
    if (!extent) {
      refuse_entry("form", i, " reaches over more elements than an arena has bytes");
    }
    forms_.push_back({static_cast<std::uint32_t>(dtype[i]), static_cast<std::uint32_t>(cls[i]),
                      static_cast<std::uint32_t>(parameter[i]), static_cast<std::uint32_t>(attributes[i]),
                      static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(rank[i]), *extent});
    first += rank[i];
  }
  if (first != dims) {
    throw Malformed(std::to_string(dims - first) + " dims belong to no form");
  }
}

void LayoutTable::read_modules(ColumnReader& reader, std::uint64_t count) {
  const auto parent = reader.column(count, count + 1, "parent of module");
  const auto named = reader.column(count, names(), "name of module");
  std::vector<std::size_t> length{0};
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < count; ++i) {
    if (parent[i] > i) {
      refuse_entry("module", i + 1, " comes before its parent " + std::to_string(parent[i]));
    }
    if (name(named[i]).find('.') != std::string_view::npos) {
      refuse_entry("module", i + 1, " has a dot in its name " + quoted(name(named[i])));
    }
    length.push_back((parent[i] == 0 ? 0 : length[parent[i]] + 1) + name(named[i]).size());
    if (length.back() > kLayoutMostText) {
      refuse_entry("module", i + 1, " has a path of more than " + std::to_string(kLayoutMostText) + " bytes");
    }
    keys.push_back(pair_of(parent[i], named[i]));
    modules_.push_back({static_cast<std::uint32_t>(parent[i]), static_cast<std::uint32_t>(named[i])});
  }
  if (const auto twice = repeated(keys)) {
    refuse_entry("module", *twice + 1, " (" + quoted(name(named[*twice])) + ") is there twice");
  }
}

void LayoutTable::read_storages(ColumnReader& reader, std::uint64_t rows, std::uint64_t count,
                                const std::vector<std::uint64_t>& segment_ends) {
  const auto bytes = reader.column(rows, kLayoutMostBytes + 1, "bytes of storage row");
  const auto kind = reader.column(rows, kLayoutStorageKinds, "kind of storage row");
  const auto gap = reader.column(rows, kLayoutMostBytes / kLayoutAlignment, "gap of storage row");
  std::uint64_t end = 0;
  std::size_t segment = 0;
  for (const std::uint64_t row : reader.column(count, rows, "row of storage")) {
    const std::size_t number = storages_.size();
    const std::uint64_t begin =
        (end + kLayoutAlignment - 1) / kLayoutAlignment * kLayoutAlignment + gap[row] * kLayoutAlignment;
    end = begin + bytes[row];  // each below 2^51
    while (segment + 1 < segment_ends.size() && begin >= segment_ends[segment]) {
      ++segment;
    }
    if (end > segment_ends[segment] && (bytes[row] != 0 || end > segment_ends.back())) {
      refuse_entry("storage", number,
                   " (bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                       ") goes beyond its segment's end at byte " + std::to_string(segment_ends[segment]));
    }
    storages_.push_back({begin, bytes[row], static_cast<std::uint32_t>(kind[row])});
  }
}

void LayoutTable::read_tensors(ColumnReader& reader, std::uint64_t count) {
  const auto storage = reader.column(count, storages_.size(), "storage of tensor");
  const auto offset = reader.column(count, kMostElements, "offset of tensor");
  const auto form = reader.column(count, forms_.size(), "form of tensor");
  std::vector<bool> used(storages_.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Form& shape = forms_[form[i]];
    const std::uint64_t last = (offset[i] + shape.extent) * kLayoutDtypes[shape.dtype].bytes;  // below 2^56
    if (last > storages_[storage[i]].bytes) {
      refuse_entry("tensor", i, " ends at byte " + std::to_string(last) + " of storage " + std::to_string(storage[i]) +
                              ", which has " + std::to_string(storages_[storage[i]].bytes));
    }
    used[storage[i]] = true;
    tensors_.push_back({offset[i], static_cast<std::uint32_t>(storage[i]), static_cast<std::uint32_t>(form[i])});
  }
  if (const auto idle = std::ranges::find(used, false); idle != used.end()) {
    refuse_entry("storage", static_cast<std::size_t>(idle - used.begin()), " holds no tensor");
  }
}

void LayoutTable::read_bindings(ColumnReader& reader, std::uint64_t count) {
  const auto module = reader.column(count, modules_.size() + 1, "module of binding");
  const auto attribute = reader.column(count, names(), "attribute of binding");
  const auto kind = reader.column(count, kLayoutBindingKinds, "kind of binding");
  const auto tensor = reader.column(count, tensors_.size(), "tensor of binding");
  std::vector<bool> used(tensors_.size());
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < count; ++i) {
    if (kind[i] == kLayoutParameter && forms_[tensors_[tensor[i]].form].parameter == 0) {
      refuse_entry("binding", i, " (" + quoted(name(attribute[i])) + ") wants a parameter; tensor " +
                               std::to_string(tensor[i]) + " is none");
    }
    used[tensor[i]] = true;
    keys.push_back(pair_of(module[i], attribute[i]));
    bindings_.push_back({static_cast<std::uint32_t>(module[i]), static_cast<std::uint32_t>(attribute[i]),
                         static_cast<std::uint32_t>(kind[i]), static_cast<std::uint32_t>(tensor[i])});
  }
  if (const auto twice = repeated(keys)) {
    refuse_entry("binding", *twice, " (" + quoted(name(attribute[*twice])) + ") has the place of another");
  }
  if (const auto idle = std::ranges::find(used, false); idle != used.end()) {
    refuse_entry("tensor", static_cast<std::size_t>(idle - used.begin()), " is bound nowhere");
  }
}

std::vector<std::string> LayoutTable::paths() const {
  std::vector<std::string> result{""};
  result.reserve(modules_.size() + 1);
  for (const Module& module : modules_) {
    std::string path = result[module.parent];
    if (module.parent != 0) {
      path += '.';
    }
    path += name(module.name);
    result.push_back(std::move(path));
  }
  return result;
}

bool LayoutTable::all_in_place() const noexcept {
  return std::ranges::all_of(tensors_, [this](const Tensor& tensor) { return in_place(tensor); });
}

LayoutTable::Names LayoutTable::full_names() const {
  Names names;
  NameBuffer buffer;
  names.ends.reserve(bindings_.size());
  for (const Binding& binding : bindings_) {
    names.text += full_name(binding, buffer);
    names.ends.push_back(names.text.size());
  }
  return names;
}

std::string_view LayoutTable::full_name(const Binding& binding, NameBuffer& buffer) const noexcept {
  std::size_t begin = buffer.size();
  const auto put = [&](std::string_view part) {
    begin -= part.size();  // a path and a name have kLayoutMostText each, as read_modules and read_names made sure
    part.copy(buffer.data() + begin, part.size());
  };
  put(name(binding.attribute));
  for (std::uint32_t module = binding.module; module != 0; module = modules_[module - 1].parent) {
    put(".");
    put(name(modules_[module - 1].name));
  }
  return {buffer.data() + begin, buffer.size() - begin};
}

}  // namespace flashboot
