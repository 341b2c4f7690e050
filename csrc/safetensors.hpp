// The header of a safetensors file, checked as strictly as the library that will load it (core/safetensors_header.py
// says what the format is), and kept as columns: a few dozen bytes a tensor besides its name.
//
// What always holds: whatever bytes it gets, the answer is a sound header, Truncated or Malformed; the tensors of a
// sound one follow each other without gap or overlap, up to the end of the file. Messages name the tensor and where it
// lies, are ASCII, and want the file's name before them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "name_table.hpp"

namespace flashboot {

struct Dtype {
  std::string_view name;
  unsigned bits;  // of one element
};

// Those of safetensors 0.8.
inline constexpr std::array kDtypes = {
    Dtype{"BOOL", 8},        Dtype{"U8", 8},          Dtype{"I8", 8},      Dtype{"F8_E5M2", 8}, Dtype{"F8_E4M3", 8},
    Dtype{"F8_E8M0", 8},     Dtype{"F8_E4M3FNUZ", 8}, Dtype{"F8_E5M2FNUZ", 8},
    Dtype{"I16", 16},        Dtype{"U16", 16},        Dtype{"F16", 16},    Dtype{"BF16", 16},   Dtype{"I32", 32},
    Dtype{"U32", 32},        Dtype{"F32", 32},        Dtype{"I64", 64},    Dtype{"U64", 64},    Dtype{"F64", 64},
    Dtype{"C64", 64},        Dtype{"F6_E2M3", 6},     Dtype{"F6_E3M2", 6}, Dtype{"F4", 4}};

struct Tensor {
  std::uint64_t begin;  // bytes from the end of the header
  std::uint64_t end;
  std::uint32_t name;   // number in the header's names
  std::uint32_t shape;  // where it begins in the header's sizes
  std::uint32_t rank;
  std::uint32_t dtype;  // index into kDtypes
};

class SafetensorsHeader {
 public:
  // `text`: all of the header, of a file of `file_bytes`, which are at least as many as the header needs (else
  // std::invalid_argument). Throws Truncated when tensors lie beyond the end of the file, Malformed.
  SafetensorsHeader(std::string_view text, std::uint64_t file_bytes);

  // In the order of their bytes.
  [[nodiscard]] std::span<const Tensor> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::string_view name(const Tensor& tensor) const noexcept { return names_[tensor.name]; }
  [[nodiscard]] std::span<const std::uint64_t> shape(const Tensor& tensor) const noexcept {
    return std::span(sizes_).subspan(tensor.shape, tensor.rank);
  }
  [[nodiscard]] const NameTable& names() const noexcept { return names_; }
  // Offset in the file of the first tensor's first byte.
  [[nodiscard]] std::uint64_t data_start() const noexcept { return data_start_; }
  [[nodiscard]] std::uint64_t data_bytes() const noexcept { return data_bytes_; }

 private:
  class Parser;
  void require_contiguous() const;

  NameTable names_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint64_t> sizes_;  // of all shapes
  std::uint64_t data_start_;
  std::uint64_t data_bytes_;
};

}  // namespace flashboot
