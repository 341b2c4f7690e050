// Columns of numbers in untrusted bytes, as a layout has them, one behind the other.
//
// Each begins with the bytes of an entry: 1, 2, 4 or 8, or 0 for one value of 8 bytes that all entries have. What
// always holds: nothing is read behind the end, and a column that comes back has all its entries below their limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashboot {

class ColumnReader {
 public:
  explicit ColumnReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // All raise Malformed, which has `what` in its words.
  std::uint64_t number(std::size_t width, std::string_view what);
  std::span<const std::byte> take(std::size_t count, std::string_view what);
  // `count` entries, all below `limit`.
  std::vector<std::uint64_t> column(std::uint64_t count, std::uint64_t limit, std::string_view what);
  // Raises Malformed when bytes are left.
  void end() const;

 private:
  template <typename Entry>
  void fill(std::vector<std::uint64_t>& values, std::uint64_t count, std::string_view what);

  std::span<const std::byte> bytes_;
};

// Raises Malformed: "what entry why".
[[noreturn]] void refuse_entry(std::string_view what, std::size_t entry, const std::string& why);

}  // namespace flashboot
