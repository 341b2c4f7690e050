// The tables of a layout (docs/reference/layout.md): names, modules, storages, tensors and bindings as columns.
//
// What always holds: whatever the bytes were, each index is below the size of what it points into; storages lie in
// order, aligned, apart from each other and inside of a segment; every element of a tensor lies inside of its storage;
// no two bindings have the same place, no tensor is without a binding and no storage without a tensor. All else is
// `Malformed`, which names the column and the entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashboot {

class ColumnReader;

struct LayoutDtype {
  std::string_view name;  // as torch has it
  std::uint8_t bytes;
};

// A tensor's dtype is its place here: only ever append.
inline constexpr std::array kLayoutDtypes = std::to_array<LayoutDtype>({
    {"float64", 8},
    {"float32", 4},
    {"float16", 2},
    {"bfloat16", 2},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"float4_e2m1fn_x2", 1},
    {"int64", 8},
    {"int32", 4},
    {"int16", 2},
    {"int8", 1},
    {"uint64", 8},
    {"uint32", 4},
    {"uint16", 2},
    {"uint8", 1},
    {"bool", 1},
    {"complex128", 16},
    {"complex64", 8},
    {"complex32", 4},
});

inline constexpr std::uint64_t kLayoutAlignment = 512;  // what the offset of every storage is a multiple of
inline constexpr std::uint64_t kLayoutMost = 1U << 18;  // entries of each table
inline constexpr std::uint64_t kLayoutMostBytes = std::uint64_t{1} << 50;  // of an arena
inline constexpr std::size_t kLayoutMostText = 1024;  // bytes of a name, and of a module's path
inline constexpr std::size_t kLayoutMostDims = 32;
inline constexpr std::size_t kLayoutStorageKinds = 3;
inline constexpr std::uint32_t kLayoutShared = 0;  // the kind of a storage that engines view where it lies
inline constexpr std::size_t kLayoutBindingKinds = 4;
inline constexpr std::uint64_t kLayoutParameter = 0;  // the kind of a binding that wants a parameter

class LayoutTable {
 public:
  struct Form {  // what many tensors have in common
    std::uint32_t dtype;
    std::uint32_t cls;  // a name
    std::uint32_t parameter;
    std::uint32_t attributes;  // a set of the document's head
    std::uint32_t first_dim;
    std::uint32_t dims;
    std::uint64_t extent;  // elements from the first to behind the last
  };
  struct Storage {
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint32_t kind;
  };
  struct Tensor {
    std::uint64_t offset;  // elements
    std::uint32_t storage;
    std::uint32_t form;
  };
  struct Binding {
    std::uint32_t module;
    std::uint32_t attribute;  // a name
    std::uint32_t kind;
    std::uint32_t tensor;
  };
  struct Module {
    std::uint32_t parent;
    std::uint32_t name;
  };

  // `segment_ends`: rising; the last is the end of the arena. `attribute_sets`: how many the head has.
  LayoutTable(std::span<const std::byte> body, std::vector<std::uint64_t> segment_ends, std::uint64_t attribute_sets);

  [[nodiscard]] std::size_t names() const noexcept { return name_ends_.size(); }
  [[nodiscard]] std::string_view name(std::size_t number) const noexcept;
  [[nodiscard]] const std::vector<Form>& forms() const noexcept { return forms_; }
  [[nodiscard]] const std::vector<Storage>& storages() const noexcept { return storages_; }
  [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::vector<Binding>& bindings() const noexcept { return bindings_; }
  // The root is number 0 and not among these: module k + 1 is entry k.
  [[nodiscard]] const std::vector<Module>& modules() const noexcept { return modules_; }
  [[nodiscard]] std::span<const std::int64_t> sizes(const Form& form) const noexcept {
    return {sizes_.data() + form.first_dim, form.dims};
  }
  [[nodiscard]] std::span<const std::int64_t> strides(const Form& form) const noexcept {
    return {strides_.data() + form.first_dim, form.dims};
  }
  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return arena_bytes_; }
  // From the start of the arena to the first element.
  [[nodiscard]] std::uint64_t byte_offset(const Tensor& tensor) const noexcept {
    return storages_[tensor.storage].offset + tensor.offset * kLayoutDtypes[forms_[tensor.form].dtype].bytes;
  }
  // Whether the tensor looks at the arena's own bytes: it has some, and they are shared.
  [[nodiscard]] bool in_place(const Tensor& tensor) const noexcept {
    return storages_[tensor.storage].kind == kLayoutShared && storages_[tensor.storage].bytes != 0;
  }
  // Of every module, the root first: names from the root on, with dots between them.
  [[nodiscard]] std::vector<std::string> paths() const;
  // Path of the module, a dot unless that is the root, and the attribute; valid until the next call with this buffer.
  using NameBuffer = std::array<char, 2 * kLayoutMostText + 1>;
  [[nodiscard]] std::string_view full_name(const Binding& binding, NameBuffer& buffer) const noexcept;
  [[nodiscard]] bool all_in_place() const noexcept;
  // Full names of all bindings, one behind the other, and where each ends.
  struct Names {
    std::string text;
    std::vector<std::size_t> ends;
  };
  [[nodiscard]] Names full_names() const;

 private:
  void read_names(ColumnReader& reader, std::uint64_t count);
  void read_forms(ColumnReader& reader, std::uint64_t count, std::uint64_t dims, std::uint64_t attribute_sets);
  void read_modules(ColumnReader& reader, std::uint64_t count);
  void read_storages(ColumnReader& reader, std::uint64_t rows, std::uint64_t count,
                     const std::vector<std::uint64_t>& segment_ends);
  void read_tensors(ColumnReader& reader, std::uint64_t count);
  void read_bindings(ColumnReader& reader, std::uint64_t count);

  std::uint64_t arena_bytes_ = 0;
  std::string text_;
  std::vector<std::uint32_t> name_ends_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  std::vector<Form> forms_;
  std::vector<Module> modules_;
  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
  std::vector<Binding> bindings_;
};

}  // namespace flashboot
