// Several weight files as one checkpoint: what an index places where, and where the tensors go in memory.
//
// What always holds: the same headers give the same layout; tensors lie in the order of the files and, inside a file,
// of its bytes, so that one system call reads many of them; each begins at a multiple of kTensorAlignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bulk_read.hpp"
#include "safetensors.hpp"

namespace flashboot {

// Bytes: a cache line, and more than any dtype or vector load needs.
inline constexpr std::uint64_t kTensorAlignment = 64;

// The index of a checkpoint: tensor → file.
class WeightMap {
 public:
  // Throws Malformed when it is no JSON object with a `weight_map`, or names files outside the folder.
  explicit WeightMap(std::string_view text);

  // Paths inside the folder without detours ("a//./b" is "a/b"), sorted.
  [[nodiscard]] const std::vector<std::string>& files() const noexcept { return files_; }
  // A tensor, shown for a message, that the index places in `file` and whose header has none of that name.
  [[nodiscard]] std::optional<std::string> absent(std::size_t file, const SafetensorsHeader& header) const;

 private:
  class Parser;

  NameTable names_;
  std::vector<std::string> files_;
  std::vector<std::vector<NameTable::Slot>> placed_;  // of each file, sorted as in the table
};

// One tensor in memory.
struct Placed {
  const Tensor* tensor;
  std::size_t file;  // index into the headers
  std::uint64_t memory_offset;

  [[nodiscard]] std::uint64_t length() const noexcept { return tensor->end - tensor->begin; }
};

class CheckpointLayout {
 public:
  using Headers = std::vector<std::shared_ptr<const SafetensorsHeader>>;

  // The headers that are laid out, in their order.
  explicit CheckpointLayout(Headers headers);

  // Of the memory; a multiple of kTensorAlignment.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] const Headers& headers() const noexcept { return headers_; }
  // What bulk_read wants: the tensors that have bytes.
  [[nodiscard]] std::vector<Extent> extents() const;
  // Calls `see` with each, in order, until it returns false.
  void each(const std::function<bool(const Placed&)>& see) const;

  // A tensor that two of the headers have, shown for a message, and which two.
  struct Twice {
    std::string name;
    std::size_t first;
    std::size_t second;
  };
  [[nodiscard]] std::optional<Twice> twice() const;

 private:
  Headers headers_;
  std::uint64_t nbytes_ = 0;
  std::size_t count_ = 0;
};

}  // namespace flashboot
