// The tables of a small layout as bytes, written without any of our code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flashboot {

struct Column {
  std::uint8_t width;
  std::vector<std::uint64_t> entries;
};

inline void put(std::string& bytes, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) {
    bytes += static_cast<char>(value >> (8 * i));
  }
}

// One float32 of shape [2, 3] on one storage, bound to a.w; each test changes an entry.
struct Document {
  std::vector<std::uint64_t> counts{3, 1, 2, 1, 1, 1, 1, 1};
  Column name_lengths{1, {1, 1, 1}};
  std::string names = "Paw";
  std::vector<Column> columns{
      {1, {1}}, {1, {2}}, {1, {0}}, {1, {1}}, {1, {0}},  // forms: dtype, rank, class, parameter, attributes
      {1, {2, 3}}, {1, {3, 1}},                          // dims: size, stride
      {1, {0}}, {1, {1}},                                // modules: parent, name
      {1, {24}}, {1, {0}}, {1, {0}},                     // storage rows: bytes, kind, gap
      {1, {0}},                                          // storages: row
      {1, {0}}, {1, {0}}, {1, {0}},                      // tensors: storage, offset, form
      {1, {1}}, {1, {2}}, {1, {0}}, {1, {0}},            // bindings: module, attribute, kind, tensor
  };
  std::string rest;

  [[nodiscard]] std::string bytes() const {
    std::string all;
    for (const std::uint64_t count : counts) {
      put(all, count, 4);
    }
    const auto add = [&all](const Column& column) {
      all += static_cast<char>(column.width);
      for (const std::uint64_t entry : column.entries) {
        put(all, entry, column.width == 0 ? 8 : column.width);
      }
    };
    add(name_lengths);
    all += names;
    for (const Column& column : columns) {
      add(column);
    }
    return all + rest;
  }
};

}  // namespace flashboot
