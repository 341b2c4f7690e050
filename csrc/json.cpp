#include "json.hpp"

#include <utility>

#include "errors.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
constexpr bool is_high(std::uint32_t code) noexcept { return code >= 0xd800 && code < 0xdc00; }
constexpr bool is_low(std::uint32_t code) noexcept { return code >= 0xdc00 && code < 0xe000; }

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {
  if (const auto wrong = first_not_utf8(text)) {
    throw Malformed(what_ + " is no UTF-8 at byte " + std::to_string(*wrong));
  }
}

char JsonReader::peek_on() noexcept {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
      return c;
    }
    ++at_;
  }
  return 0;
}

void JsonReader::enter(char open) {
  if (peek() != open) {
    refuse(std::string("'") + open + "' is expected");
  }
  if (++depth_ > kMaxDepth) {
    throw Malformed(what_ + " is nested too deep");
  }
  ++at_;
}

bool JsonReader::another(char close, bool first) {
  const char c = peek();
  if (c == close) {
    ++at_;
    --depth_;
    return false;
  }
  if (!first) {
    if (c != ',') {
      refuse(std::string("',' or '") + close + "' is expected");
    }
    ++at_;
  }
  return true;
}

std::string_view JsonReader::key() {
  const std::string_view name = string();
  if (peek() != ':') {
    refuse("':' is expected");
  }
  ++at_;
  return name;
}

std::string_view JsonReader::string() {
  if (peek() != '"') {
    refuse("a string is expected");
  }
  const std::size_t begin = ++at_;
  const std::size_t close = text_.find('"', begin);
  const std::string_view plain = text_.substr(begin, close == std::string_view::npos ? close : close - begin);
  unsigned char odd = 0;
  for (const char c : plain) {  // no early end and no branch: the compiler looks at many characters at once
    odd |= static_cast<unsigned char>((static_cast<unsigned char>(c) < 0x20) | (c == '\\'));
  }
  had_escapes_ = odd != 0 || close == std::string_view::npos;
  if (!had_escapes_) {
    at_ = close + 1;
    return plain;
  }
  decoded_.clear();
  while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x20) {
    const char c = text_[at_++];
    if (c == '"') {
      return decoded_;
    }
    c == '\\' ? escape() : decoded_.push_back(c);
  }
  refuse(at_ < text_.size() ? "a control character in a string" : "the string does not end");
}

void JsonReader::escape() {
  constexpr std::string_view kShort = "\"\\/bfnrt";
  constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  if (const std::size_t i = kShort.find(c); i != std::string_view::npos) {
    ++at_;
    decoded_.push_back(kMeaning[i]);
    return;
  }
  if (c != 'u') {
    refuse("no escape of JSON");
  }
  ++at_;
  std::uint32_t code = hexadecimal();
  if (is_high(code) && text_.substr(at_, 2) == "\\u") {
    const std::size_t second = at_;
    at_ += 2;
    const std::uint32_t low = hexadecimal();
    if (is_low(low)) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else {
      at_ = second;
    }
  }
  append_utf8(decoded_, code);
}

std::uint32_t JsonReader::hexadecimal() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (is_digit(c)) {
      code = code * 16 + static_cast<std::uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      code = code * 16 + static_cast<std::uint32_t>((c | 0x20) - 'a') + 10;
    } else {
      refuse("four hexadecimal digits are expected");
    }
  }
  return code;
}

std::optional<std::uint64_t> JsonReader::number() {
  const char first = peek();
  const bool minus = first == '-';
  const std::size_t begin = at_;
  at_ += minus ? 1 : 0;
  const bool zero = at_ < text_.size() && text_[at_] == '0';
  std::uint64_t value = 0;
  bool whole = !minus;
  const std::size_t integer = at_;
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
    const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
    whole = whole && !__builtin_mul_overflow(value, std::uint64_t{10}, &value) &&
            !__builtin_add_overflow(value, digit, &value);
  }
  if (at_ == integer || (zero && at_ - integer > 1)) {
    at_ = begin;
    refuse("a value is expected");
  }
  const std::size_t behind = at_;
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
  }
  if (at_ < text_.size() && (text_[at_] | 0x20) == 'e') {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) {
      ++at_;
    }
    digits();
  }
  if (at_ != behind) {
    return std::nullopt;
  }
  if (minus && zero) {
    refuse("-0 is no integer");
  }
  return whole ? std::optional(value) : std::nullopt;
}

void JsonReader::digits() {
  const std::size_t begin = at_;
  while (at_ < text_.size() && is_digit(text_[at_])) {
    ++at_;
  }
  if (at_ == begin) {
    refuse("a digit is expected");
  }
}

void JsonReader::skip() {
  switch (peek()) {
    case '{':
      return object([this](std::string_view) { skip(); });
    case '[':
      enter('[');
      for (bool first = true; another(']', first); first = false) {
        skip();
      }
      return;
    case '"':
      (void)string();
      return;
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    case 'N':
    case 'I':
      refuse("NaN and Infinity are no JSON numbers");
    default:
      number();
  }
}

void JsonReader::word(std::string_view expected) {
  if (text_.substr(at_, expected.size()) != expected) {
    refuse("a value is expected");
  }
  at_ += expected.size();
}

void JsonReader::end() {
  if (peek() != 0 || at_ < text_.size()) {
    refuse("nothing more is expected");
  }
}

void JsonReader::refuse(const std::string& why) const {
  throw Malformed(what_ + " is no valid JSON: at byte " + std::to_string(at_) + ": " + why);
}

void JsonReader::twice(std::string_view key) const {
  throw Malformed(what_ + " is no valid JSON: key " + quoted(key) + " comes twice");
}

}  // namespace flashboot
