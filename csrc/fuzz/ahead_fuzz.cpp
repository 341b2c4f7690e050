// Any bytes as an agent's offer and as a layout document: taken apart soundly, or left, or refused in words of ASCII.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent_offer.hpp"
#include "errors.hpp"
#include "layout_document.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flashboot;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto offer = read_offer(text)) {
    require(text.find(offer->arena) != std::string_view::npos && text.find(offer->digest) != std::string_view::npos,
            "an offer that was not made");
  }
  if (const auto bytes = plain_arena_bytes(text, "{}")) {
    require(*bytes > 0 && text.ends_with("[[0," + std::to_string(*bytes) + "]],\"structure\":null}"),
            "a head of another arena");
  }
  try {
    const LayoutDocument parts(std::as_bytes(std::span(data, size)));
    require(parts.head.size() + parts.tables.size() + 24 == size, "parts of another size");
  } catch (const Malformed& error) {
    const std::string message = error.what();
    require(std::ranges::all_of(message, [](char c) { return c >= ' ' && c < 0x7f; }), "a message that does not print");
  }
  return 0;
}
