#include "tensor_entry.hpp"

#include <algorithm>
#include <utility>

#include "safetensors.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

std::optional<std::uint32_t> dtype_of(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(kDtypes, name, &Dtype::name);
  return found == kDtypes.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found - kDtypes.begin()));
}

void once(const JsonReader& json, bool& there, std::string_view key) {
  if (std::exchange(there, true)) {
    json.twice(key);
  }
}

}  // namespace

void TensorEntry::read(JsonReader& json) {
  has_dtype_ = shape_.there = offsets_.there = false;
  unknown_key_.clear();
  json.enter('{');
  for (bool first = true; json.another('}', first); first = false) {
    const std::string_view key = json.key();
    if (key == "dtype") {
      once(json, has_dtype_, key);
      read_dtype(json);
    } else if (key == "shape") {
      once(json, shape_.there, key);
      shape_.read(json);
    } else if (key == "data_offsets") {
      once(json, offsets_.there, key);
      offsets_.read(json);
    } else {
      unknown_key_ = unknown_key_.empty() ? quoted(key) : unknown_key_;
      json.skip();
    }
  }
}

void TensorEntry::read_dtype(JsonReader& json) {
  const std::size_t begin = json.mark();
  dtype_.reset();
  if (json.peek() != '"') {
    json.skip();
    odd_dtype_ = shown(json.since(begin));
    return;
  }
  const std::string_view name = json.string();
  dtype_ = dtype_of(name);
  if (!dtype_) {
    odd_dtype_ = quoted(name);
  }
}

// Reads over whatever else it is.
void TensorEntry::Sizes::read(JsonReader& json) {
  const std::size_t begin = json.mark();
  values.clear();
  fit = json.peek() == '[';
  if (fit) {
    json.enter('[');
    for (bool first = true; json.another(']', first); first = false) {
      const bool digit = json.peek() >= '0' && json.peek() <= '9';
      const auto size = digit ? json.number() : (json.skip(), std::nullopt);
      fit = fit && size;
      values.push_back(size.value_or(0));
    }
  } else {
    json.skip();
  }
  text = json.since(begin);
}

std::string TensorEntry::wrong() const {
  if (!unknown_key_.empty()) {
    return "unknown key " + unknown_key_;
  }
  if (!offsets_.there || !has_dtype_ || !shape_.there) {
    return std::string("no ") + (!offsets_.there ? "data_offsets" : !has_dtype_ ? "dtype" : "shape");
  }
  if (!dtype_) {
    return "unknown dtype " + odd_dtype_;
  }
  if (!shape_.fit) {
    return "shape " + shown(shape_.text) + " is no list of sizes";
  }
  if (!offsets_.fit || offsets_.values.size() != 2) {
    return "data_offsets " + shown(offsets_.text) + " is no pair of offsets";
  }
  return wrong_size();
}

std::string TensorEntry::wrong_size() const {
  if (begin() > end()) {
    return "data_offsets " + shown(offsets_.text) + " run backwards";
  }
  std::uint64_t bits = kDtypes[*dtype_].bits;
  for (const std::uint64_t size : shape_.values) {
    if (__builtin_mul_overflow(bits, size, &bits)) {
      return "shape " + shown(shape_.text) + " is beyond 64 bits";
    }
  }
  if (bits % 8 == 0 && bits / 8 == end() - begin()) {
    return {};
  }
  const std::string tensor = std::string(kDtypes[*dtype_].name) + " of shape " + shown(shape_.text) + " has ";
  if (bits % 8 != 0) {
    return tensor + std::to_string(bits) + " bits, no whole bytes";
  }
  return tensor + std::to_string(bits / 8) + " bytes, data_offsets " + shown(offsets_.text) + " " +
         std::to_string(end() - begin());
}

}  // namespace flashboot
