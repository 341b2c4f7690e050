// UTF-8 of untrusted bytes, and how messages show it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashboot {

// The first byte that begins no character of UTF-8; none when all is text. Overlong forms, surrogates and characters
// beyond U+10FFFF are none.
[[nodiscard]] std::optional<std::size_t> first_not_utf8(std::string_view text) noexcept;

// Adds a character; half a surrogate pair gets the three bytes that UTF-8 would have for it, and does not allow.
void append_utf8(std::string& text, std::uint32_t code);

// As Python's ascii() shows a str; halves of surrogate pairs too. At most 80 characters.
[[nodiscard]] std::string quoted(std::string_view text);

// A piece of a text, for a message: ASCII, at most 80 characters.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace flashboot
