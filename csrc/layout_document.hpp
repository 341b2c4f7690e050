// A layout document (docs/reference/layout.md): a frame with a checksum, a head in JSON, and tables.
//
// What always holds: head and tables are the document's, whole, and its checksum is right; all else is `Malformed`.
// What the head says is checked in Python (wire/layout_head.py), but for one head, which is known before it comes: that
// of a dictionary of tensors, with the reader's own identity and nothing beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace flashboot {

inline constexpr std::size_t kLayoutMostDocument = std::size_t{64} << 20;  // the largest that tables allow fits several times
inline constexpr std::uint32_t kLayoutVersion = 2;

struct LayoutDocument {
  std::string_view head;
  std::span<const std::byte> tables;

  explicit LayoutDocument(std::span<const std::byte> document);
};

// As zlib has it.
[[nodiscard]] std::uint32_t crc32_of(std::span<const std::byte> bytes) noexcept;

// Bytes of the arena when `head` is the canonical one of plain tensors in one segment; `identity`: canonical JSON.
[[nodiscard]] std::optional<std::uint64_t> plain_arena_bytes(std::string_view head, std::string_view identity);

// `sha256:` and hex.
[[nodiscard]] std::string document_digest(std::span<const std::byte> document);

}  // namespace flashboot
