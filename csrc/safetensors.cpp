#include "safetensors.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "errors.hpp"
#include "json.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

std::optional<std::uint32_t> dtype_of(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(kDtypes, name, &Dtype::name);
  return found == kDtypes.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found - kDtypes.begin()));
}

}  // namespace

// Reads the whole text before it judges any tensor: what is no JSON is told before what an entry lacks.
class SafetensorsHeader::Parser {
 public:
  Parser(SafetensorsHeader& header, std::string_view text) : header_(header), json_(text, "the header") {}

  void run() {
    const auto begin = json_.mark();
    if (json_.peek() != '{') {
      json_.skip();
      json_.end();
      throw Malformed("the header is " + shown(json_.since(begin)) + ", not a JSON object");
    }
    json_.enter('{');
    for (bool first = true; json_.another('}', first); first = false) {
      const std::string_view name = json_.key();
      if (name == kMetadata) {
        metadata();
      } else {
        header_.names_.add(name);
        tensor(json_.had_escapes());
      }
    }
    json_.end();
    if (const auto twice = header_.names_.seal()) {
      json_.twice(header_.names_[*twice]);
    }
    if (!fault_.empty()) {
      throw Malformed(fault_);
    }
  }

 private:
  // The parts of an entry, and how a message shows them.
  struct Entry {
    std::string unknown_key;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    std::optional<std::uint32_t> dtype;
    std::optional<std::span<const std::uint64_t>> shape, offsets;
    std::string odd_dtype;
    std::string_view shape_text, offsets_text;
  };

  void metadata() {
    if (std::exchange(has_metadata_, true)) {
      json_.twice(kMetadata);
    }
    bool strings = json_.peek() == '{' || json_.peek() == 'n';
    if (json_.peek() == '{') {
      json_.object([&](std::string_view) {
        strings = strings && json_.peek() == '"';
        json_.skip();
      });
    } else {
      json_.skip();
    }
    if (!strings) {
      fault("__metadata__ is not an object of strings");
    }
  }

  // The entry of the name that was read last.
  void tensor(bool odd_name) {
    if (json_.peek() != '{') {
      json_.skip();
      return refuse("its entry is no object");
    }
    const std::size_t shape = header_.sizes_.size();
    const Entry entry = read_entry();
    if (odd_name && first_not_utf8(header_.names_[last_name()])) {  // half a surrogate pair, written as an escape
      return refuse("its name is no Unicode text");
    }
    const std::string why = wrong_with(entry);
    if (!why.empty()) {
      return refuse(why);
    }
    header_.tensors_.push_back({(*entry.offsets)[0], (*entry.offsets)[1], last_name(),
                                static_cast<std::uint32_t>(shape), static_cast<std::uint32_t>(entry.shape->size()),
                                *entry.dtype});
    header_.sizes_.insert(header_.sizes_.end(), entry.shape->begin(), entry.shape->end());
  }

  Entry read_entry() {
    Entry entry;
    json_.enter('{');
    for (bool first = true; json_.another('}', first); first = false) {
      const std::string_view key = json_.key();
      if (key == "dtype") {
        once(entry.has_dtype, key);
        read_dtype(entry);
      } else if (key == "shape") {
        once(entry.has_shape, key);
        entry.shape = read_sizes(shape_, entry.shape_text);
      } else if (key == "data_offsets") {
        once(entry.has_offsets, key);
        entry.offsets = read_sizes(offsets_, entry.offsets_text);
      } else {
        entry.unknown_key = entry.unknown_key.empty() ? quoted(key) : entry.unknown_key;
        json_.skip();
      }
    }
    return entry;
  }

  void once(bool& seen, std::string_view key) const {
    if (std::exchange(seen, true)) {
      json_.twice(key);
    }
  }

  void read_dtype(Entry& entry) {
    const auto begin = json_.mark();
    if (json_.peek() == '"') {
      const std::string_view name = json_.string();
      entry.dtype = dtype_of(name);
      entry.odd_dtype = entry.dtype ? "" : quoted(name);
    } else {
      json_.skip();
      entry.odd_dtype = shown(json_.since(begin));
    }
  }

  // None when the value, which then is read over, is no list of sizes.
  std::optional<std::span<const std::uint64_t>> read_sizes(std::vector<std::uint64_t>& sizes, std::string_view& text) {
    const auto begin = json_.mark();
    sizes.clear();
    bool fits = json_.peek() == '[';
    if (fits) {
      json_.enter('[');
      for (bool first = true; json_.another(']', first); first = false) {
        const auto size = is_digit(json_.peek()) ? json_.number() : (json_.skip(), std::nullopt);
        fits = fits && size;
        sizes.push_back(size.value_or(0));
      }
    } else {
      json_.skip();
    }
    text = json_.since(begin);
    return fits ? std::optional(std::span<const std::uint64_t>(sizes)) : std::nullopt;
  }

  // Empty when it is sound.
  [[nodiscard]] static std::string wrong_with(const Entry& entry) {
    if (!entry.unknown_key.empty()) {
      return "unknown key " + entry.unknown_key;
    }
    if (!entry.has_offsets || !entry.has_dtype || !entry.has_shape) {
      return std::string("no ") + (!entry.has_offsets ? "data_offsets" : !entry.has_dtype ? "dtype" : "shape");
    }
    if (!entry.dtype) {
      return "unknown dtype " + entry.odd_dtype;
    }
    if (!entry.shape) {
      return "shape " + shown(entry.shape_text) + " is no list of sizes";
    }
    if (!entry.offsets || entry.offsets->size() != 2) {
      return "data_offsets " + shown(entry.offsets_text) + " is no pair of offsets";
    }
    return wrong_size(entry);
  }

  [[nodiscard]] static std::string wrong_size(const Entry& entry) {
    const std::uint64_t begin = (*entry.offsets)[0];
    const std::uint64_t end = (*entry.offsets)[1];
    if (begin > end) {
      return "data_offsets " + shown(entry.offsets_text) + " run backwards";
    }
    const Dtype& dtype = kDtypes[*entry.dtype];
    std::uint64_t bits = dtype.bits;
    for (const std::uint64_t size : *entry.shape) {
      if (__builtin_mul_overflow(bits, size, &bits)) {
        return "shape " + shown(entry.shape_text) + " is beyond 64 bits";
      }
    }
    if (bits % 8 == 0 && bits / 8 == end - begin) {
      return {};
    }
    const std::string tensor = std::string(dtype.name) + " of shape " + shown(entry.shape_text) + " has ";
    if (bits % 8 != 0) {
      return tensor + std::to_string(bits) + " bits, no whole bytes";
    }
    return tensor + std::to_string(bits / 8) + " bytes, data_offsets " + shown(entry.offsets_text) + " " +
           std::to_string(end - begin);
  }

  [[nodiscard]] std::uint32_t last_name() const noexcept {
    return static_cast<std::uint32_t>(header_.names_.size() - 1);
  }

  void refuse(const std::string& why) { fault("tensor " + quoted(header_.names_[last_name()]) + ": " + why); }

  // The first one is told.
  void fault(const std::string& why) { fault_ = fault_.empty() ? why : fault_; }

  SafetensorsHeader& header_;
  JsonReader json_;
  std::vector<std::uint64_t> shape_, offsets_;  // of the entry that is read
  std::string fault_;
  bool has_metadata_ = false;
};

SafetensorsHeader::SafetensorsHeader(std::string_view text, std::uint64_t file_bytes)
    : names_(text.size()), data_start_(kLengthBytes + text.size()), data_bytes_(file_bytes - data_start_) {
  if (file_bytes < data_start_ || text.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a header of " + std::to_string(text.size()) + " bytes in a file of " +
                                std::to_string(file_bytes));
  }
  Parser(*this, text).run();
  const auto place = [this](const Tensor& t) { return std::tuple(t.begin, t.end, name(t)); };
  const auto before = [&](const Tensor& one, const Tensor& other) {
    return one.begin != other.begin ? one.begin < other.begin : place(one) < place(other);
  };
  if (!std::ranges::is_sorted(tensors_, before)) {
    std::ranges::sort(tensors_, before);
  }
  require_contiguous();
}

void SafetensorsHeader::require_contiguous() const {
  std::uint64_t last = 0;
  for (const Tensor& tensor : tensors_) {
    const auto& [begin, end, number, shape, rank, dtype] = tensor;
    if (begin != last) {
      throw Malformed("tensor " + quoted(name(tensor)) + " begins at data byte " + std::to_string(begin) + " and " +
                      (begin > last ? "leaves a gap after" : "overlaps the tensor that ends at") + " byte " +
                      std::to_string(last));
    }
    if (end > data_bytes_) {
      throw Truncated("has " + std::to_string(data_bytes_) + " data bytes; " + std::to_string(end - data_bytes_) +
                      " of tensor " + quoted(name(tensor)) + " at [" + std::to_string(begin) + ", " +
                      std::to_string(end) + ") are missing");
    }
    last = end;
  }
  if (last != data_bytes_) {
    throw Malformed("its tensors end at data byte " + std::to_string(last) + ", the file has " +
                    std::to_string(data_bytes_) + " data bytes");
  }
}

}  // namespace flashboot
