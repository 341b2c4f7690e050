#include "layout_columns.hpp"

#include <algorithm>

#include "errors.hpp"

namespace flashboot {
namespace {

// Little-endian; where the width is a constant, the compiler makes one load of it.
inline std::uint64_t little(const std::byte* from, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) {
    value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  }
  return value;
}

}  // namespace

void refuse_entry(std::string_view what, std::size_t entry, const std::string& why) {
  throw Malformed(std::string(what) + " " + std::to_string(entry) + why);
}

std::uint64_t ColumnReader::number(std::size_t width, std::string_view what) {
  return little(take(width, what).data(), width);
}

std::span<const std::byte> ColumnReader::take(std::size_t count, std::string_view what) {
  if (count > bytes_.size()) {
    throw Malformed("the tables end inside of '" + std::string(what) + "'");
  }
  const auto taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  return taken;
}

template <typename Entry>
void ColumnReader::fill(std::vector<std::uint64_t>& values, std::uint64_t count, std::string_view what) {
  const auto from = take(count * sizeof(Entry), what);
  values.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = little(from.data() + i * sizeof(Entry), sizeof(Entry));
  }
}

std::vector<std::uint64_t> ColumnReader::column(std::uint64_t count, std::uint64_t limit, std::string_view what) {
  const std::uint64_t width = number(1, what);
  std::vector<std::uint64_t> values;
  switch (width) {
    case 0:
      values.assign(count, number(8, what));
      break;
    case 1:
      fill<std::uint8_t>(values, count, what);
      break;
    case 2:
      fill<std::uint16_t>(values, count, what);
      break;
    case 4:
      fill<std::uint32_t>(values, count, what);
      break;
    case 8:
      fill<std::uint64_t>(values, count, what);
      break;
    default:
      throw Malformed("'" + std::string(what) + "' has entries of " + std::to_string(width) + " bytes");
  }
  const auto beyond = std::ranges::find_if(values, [limit](std::uint64_t value) { return value >= limit; });
  if (beyond != values.end()) {
    refuse_entry(what, static_cast<std::size_t>(beyond - values.begin()),
                 " is " + std::to_string(*beyond) + ", not below " + std::to_string(limit));
  }
  return values;
}

void ColumnReader::end() const {
  if (!bytes_.empty()) {
    throw Malformed(std::to_string(bytes_.size()) + " bytes follow the last table");
  }
}

}  // namespace flashboot
