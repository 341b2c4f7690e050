// A strict reader of JSON for files that may hold anything: the headers of weight files, and their index.
//
// What always holds: the whole text is UTF-8 before anything of it is read; every call either reads a value that JSON
// allows or throws Malformed with the byte at which it does not; only strings with escapes are copied; no text makes
// the stack deeper than kMaxDepth values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace flashboot {

class JsonReader {
 public:
  static constexpr int kMaxDepth = 128;

  // `what` is how messages call the text. Throws Malformed when it is no UTF-8.
  JsonReader(std::string_view text, std::string what);

  // The first character of what comes next; 0 at the end.
  char peek() noexcept {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    return c > ' ' ? c : peek_on();
  }
  // Where what comes next begins.
  [[nodiscard]] std::size_t mark() noexcept { return peek(), at_; }
  // What was read since then.
  [[nodiscard]] std::string_view since(std::size_t mark) const noexcept { return text_.substr(mark, at_ - mark); }

  // Enter an object or array: `open` is its first character.
  void enter(char open);
  // Whether there is another item before `close`; reads the comma or the end. `first`: none was read yet.
  [[nodiscard]] bool another(char close, bool first);
  // A key and its colon; valid until the next string is read.
  [[nodiscard]] std::string_view key();
  // Whether the last string had escapes.
  [[nodiscard]] bool had_escapes() const noexcept { return had_escapes_; }
  // A string, escapes resolved; half a surrogate pair has three bytes, which are no UTF-8 (utf8.hpp).
  [[nodiscard]] std::string_view string();
  // A number; its value when it is an integer from 0 to 2^64 - 1. -0 is refused: to other readers it is a float.
  std::optional<std::uint64_t> number();
  // An object whose keys must differ; `value` is called with each, and reads what it has.
  template <typename Value>
  void object(Value&& value) {
    std::set<std::string> seen;
    enter('{');
    for (bool first = true; another('}', first); first = false) {
      const auto [name, fresh] = seen.emplace(key());
      if (!fresh) {
        twice(*name);
      }
      value(std::string_view(*name));
    }
  }
  // Any value.
  void skip();
  // Nothing may follow.
  void end();

  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void twice(std::string_view key) const;

 private:
  char peek_on() noexcept;
  void word(std::string_view expected);
  void escape();
  std::uint32_t hexadecimal();
  void digits();

  std::string_view text_;
  std::string what_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string decoded_;
  bool had_escapes_ = false;
};

}  // namespace flashboot
