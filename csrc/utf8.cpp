#include "utf8.hpp"

#include <array>
#include <cstdio>

namespace flashboot {
namespace {

constexpr std::size_t kBrief = 80;
// Bytes that are looked at together.
constexpr std::size_t kBlock = 32;

struct Character {
  std::uint32_t code;
  std::size_t bytes;  // 0: none begins here
};

// The character at `at`. `halves`: half a surrogate pair is one, too.
Character character(std::string_view text, std::size_t at, bool halves) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < bytes) {
    return {0, 0};
  }
  std::uint32_t code = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return {0, 0};
    }
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool half = code >= 0xd800 && code < 0xe000;
  return code < kLeast[bytes] || code > 0x10ffff || (half && !halves) ? Character{0, 0} : Character{code, bytes};
}

bool is_ascii(std::string_view block) noexcept {
  unsigned char bits = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    bits |= static_cast<unsigned char>(block[i]);
  }
  return bits < 0x80;
}

// Of ASCII only: what does not print, and what is beyond it, is escaped.
std::string escaped(std::string_view text, char quote) {
  std::string out;
  for (std::size_t at = 0; at < text.size() && out.size() <= kBrief * 16;) {
    const Character found = character(text, at, true);
    const std::uint32_t code = found.code;
    at += found.bytes == 0 ? 1 : found.bytes;
    std::array<char, 12> number{};
    if (quote != 0 && (code == static_cast<unsigned char>(quote) || code == '\\')) {
      out += {'\\', static_cast<char>(code)};
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (code >= 0x20 && code < 0x7f) {
      out += static_cast<char>(code);
    } else {
      const char* const form = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(number.data(), number.size(), form, code);
      out += number.data();
    }
  }
  return out;
}

std::string shortened(std::string text) {
  return text.size() <= kBrief ? text : text.substr(0, kBrief - 3) + "...";
}

}  // namespace

std::optional<std::size_t> first_not_utf8(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= kBlock && is_ascii(text.substr(at, kBlock))) {
      at += kBlock;
      continue;
    }
    const Character found = character(text, at, false);
    if (found.bytes == 0) {
      return at;
    }
    at += found.bytes;
  }
  return std::nullopt;
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto tail = [&](int shift) { text.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3f))); };
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
    return;
  }
  if (code < 0x800) {
    text.push_back(static_cast<char>(0xc0 | code >> 6));
    return tail(0);
  }
  if (code < 0x10000) {
    text.push_back(static_cast<char>(0xe0 | code >> 12));
  } else {
    text.push_back(static_cast<char>(0xf0 | code >> 18));
    tail(12);
  }
  tail(6);
  tail(0);
}

std::string quoted(std::string_view text) {
  const bool apostrophe = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = apostrophe ? '"' : '\'';
  return shortened(quote + escaped(text, quote) + quote);
}

std::string shown(std::string_view text) { return shortened(escaped(text, 0)); }

}  // namespace flashboot
