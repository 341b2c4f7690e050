#include "safetensors.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "errors.hpp"
#include "json.hpp"
#include "tensor_entry.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

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
    entry_.read(json_);
    if (odd_name && first_not_utf8(header_.names_[last_name()])) {  // half a surrogate pair, written as an escape
      return refuse("its name is no Unicode text");
    }
    const std::string why = entry_.wrong();
    if (!why.empty()) {
      return refuse(why);
    }
    const std::span<const std::uint64_t> shape = entry_.shape();
    header_.tensors_.push_back({entry_.begin(), entry_.end(), last_name(),
                                static_cast<std::uint32_t>(header_.sizes_.size()),
                                static_cast<std::uint32_t>(shape.size()), entry_.dtype()});
    header_.sizes_.insert(header_.sizes_.end(), shape.begin(), shape.end());
  }

  [[nodiscard]] std::uint32_t last_name() const noexcept {
    return static_cast<std::uint32_t>(header_.names_.size() - 1);
  }

  void refuse(const std::string& why) { fault("tensor " + quoted(header_.names_[last_name()]) + ": " + why); }

  // The first one is told.
  void fault(const std::string& why) { fault_ = fault_.empty() ? why : fault_; }

  SafetensorsHeader& header_;
  JsonReader json_;
  TensorEntry entry_;
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
