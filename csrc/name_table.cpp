#include "name_table.hpp"

#include <algorithm>
#include <span>
#include <tuple>

#include "digest.hpp"

namespace flashboot {
namespace {

std::uint64_t hash_of(std::string_view name) noexcept { return xxh3_64(std::as_bytes(std::span(name))); }

}  // namespace

void NameTable::add(std::string_view name) {
  places_.push_back({static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(name.size())});
  bytes_ += name;
}

std::string_view NameTable::operator[](std::size_t number) const noexcept {
  const Place& place = places_[number];
  return std::string_view(bytes_).substr(place.begin, place.length);
}

std::optional<std::size_t> NameTable::seal() {
  sorted_.reserve(size());
  for (std::uint32_t i = 0; i < size(); ++i) {
    sorted_.push_back({hash_of((*this)[i]), i});
  }
  std::ranges::sort(sorted_, [this](const Slot& one, const Slot& other) {
    const auto name = [this](const Slot& slot) { return std::tuple((*this)[slot.name], slot.name); };
    return one.hash != other.hash ? one.hash < other.hash : name(one) < name(other);
  });
  std::optional<std::size_t> twice;
  for (std::size_t i = 1; i < sorted_.size(); ++i) {
    const Slot& slot = sorted_[i];
    if (slot.hash == sorted_[i - 1].hash && (*this)[slot.name] == (*this)[sorted_[i - 1].name]) {
      twice = std::min<std::size_t>(twice.value_or(slot.name), slot.name);
    }
  }
  return twice;
}

}  // namespace flashboot
