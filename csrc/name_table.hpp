// The names of a file's tensors: kept once, in the order they came, and found by hash.
//
// What always holds: names that share a hash cost a comparison each and no more, so that no choice of names makes this
// slow (sorted, not a hash table).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashboot {

class NameTable {
 public:
  struct Slot {
    std::uint64_t hash;
    std::uint32_t name;  // its number
  };

  // `most_bytes`: of all names together, below 4 GiB.
  explicit NameTable(std::size_t most_bytes) { bytes_.reserve(most_bytes); }

  void add(std::string_view name);
  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
  [[nodiscard]] std::string_view operator[](std::size_t number) const noexcept;

  // After the last name. Returns the number of a name that was there before, the lowest; none when all differ.
  [[nodiscard]] std::optional<std::size_t> seal();
  // Of a sealed table, by hash, then name.
  [[nodiscard]] const std::vector<Slot>& sorted() const noexcept { return sorted_; }
  // Whether the name of `slot` comes before (< 0) that of `other_slot` in the order of `sorted`, or is the same (0).
  [[nodiscard]] int compare(const Slot& slot, const NameTable& other, const Slot& other_slot) const noexcept {
    return slot.hash != other_slot.hash ? (slot.hash < other_slot.hash ? -1 : 1)
                                        : (*this)[slot.name].compare(other[other_slot.name]);
  }

 private:
  struct Place {
    std::uint32_t begin;
    std::uint32_t length;
  };

  std::string bytes_;
  std::vector<Place> places_;
  std::vector<Slot> sorted_;
};

}  // namespace flashboot
