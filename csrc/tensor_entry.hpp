// One tensor's entry in a safetensors header: dtype, shape and data_offsets, each once and nothing else.
//
// What always holds: an entry of which `wrong` says nothing has whole bytes, as many as its offsets span, and no
// product of its sizes is beyond 64 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"

namespace flashboot {

// Made once and used for all entries of a header.
class TensorEntry {
 public:
  // The object that comes next. Throws Malformed for what is no JSON, which keys that come twice are to us.
  void read(JsonReader& json);
  // What a sound entry may not be, for a message; empty when it is one. The others are for sound ones.
  [[nodiscard]] std::string wrong() const;

  [[nodiscard]] std::uint32_t dtype() const { return *dtype_; }  // index into kDtypes
  [[nodiscard]] std::span<const std::uint64_t> shape() const noexcept { return shape_.values; }
  [[nodiscard]] std::uint64_t begin() const { return offsets_.values.at(0); }
  [[nodiscard]] std::uint64_t end() const { return offsets_.values.at(1); }

 private:
  struct Sizes {
    bool there;
    bool fit;  // it is a list of sizes
    std::string_view text;
    std::vector<std::uint64_t> values;
    void read(JsonReader& json);
  };

  void read_dtype(JsonReader& json);
  [[nodiscard]] std::string wrong_size() const;

  bool has_dtype_ = false;
  std::optional<std::uint32_t> dtype_;
  std::string odd_dtype_;  // for a message
  Sizes shape_{};
  Sizes offsets_{};
  std::string unknown_key_;
};

}  // namespace flashboot
