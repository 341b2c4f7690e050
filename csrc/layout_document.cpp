#include "layout_document.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "errors.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

constexpr std::string_view kMagic = "FBLAYOUT";
constexpr std::size_t kChecked = 16;  // where what the checksum is of begins
constexpr std::size_t kPrefix = 24;

std::uint32_t little(std::span<const std::byte> bytes, std::size_t at) noexcept {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::to_integer<std::uint32_t>(bytes[at + i]) << (8 * i);
  }
  return value;
}

// Table k: what a byte does to the sum k bytes further on.
constexpr auto kSums = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) {
      sum = sum >> 1 ^ ((sum & 1) != 0 ? 0xedb88320U : 0);
    }
    tables[0][byte] = sum;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}();

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes) noexcept {
  std::uint32_t sum = ~0U;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint32_t low = sum ^ little(bytes, 0);
    const std::uint32_t high = little(bytes, 4);
    sum = kSums[7][low & 0xff] ^ kSums[6][low >> 8 & 0xff] ^ kSums[5][low >> 16 & 0xff] ^ kSums[4][low >> 24] ^
          kSums[3][high & 0xff] ^ kSums[2][high >> 8 & 0xff] ^ kSums[1][high >> 16 & 0xff] ^ kSums[0][high >> 24];
  }
  for (const std::byte byte : bytes) {
    sum = sum >> 8 ^ kSums[0][(sum ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~sum;
}

LayoutDocument::LayoutDocument(std::span<const std::byte> document) {
  const std::string_view text(reinterpret_cast<const char*>(document.data()), document.size());
  if (document.size() < kPrefix || !text.starts_with(kMagic)) {
    throw Malformed("no layout document: " + std::to_string(document.size()) + " bytes that begin with " +
                    quoted(text.substr(0, kMagic.size())));
  }
  if (const std::uint32_t version = little(document, 8); version != kLayoutVersion) {
    throw Malformed("a layout of version " + std::to_string(version) + "; this FlashBoot reads version " +
                    std::to_string(kLayoutVersion));
  }
  if (crc32_of(document.subspan(kChecked)) != little(document, 12)) {
    throw Malformed("the layout document differs from its checksum");
  }
  const std::uint64_t head_bytes = little(document, 16);
  const std::uint64_t table_bytes = little(document, 20);
  if (kPrefix + head_bytes + table_bytes != document.size()) {
    throw Malformed("head and tables of " + std::to_string(head_bytes) + " and " + std::to_string(table_bytes) +
                    " bytes in a layout of " + std::to_string(document.size()));
  }
  head = text.substr(kPrefix, head_bytes);
  tables = document.subspan(kPrefix + head_bytes);
}

std::optional<std::uint64_t> plain_arena_bytes(std::string_view head, std::string_view identity) {
  constexpr std::string_view kBefore = "{\"arenaBytes\":";
  if (!head.starts_with(kBefore)) {
    return std::nullopt;
  }
  std::uint64_t bytes = 0;
  const auto number = head.substr(kBefore.size());
  if (std::from_chars(number.data(), number.data() + number.size(), bytes).ec != std::errc() || bytes == 0) {
    return std::nullopt;
  }
  const std::string said = std::to_string(bytes);
  std::string expected(kBefore);
  expected += said + R"(,"attributes":[{}],"deleted":[],"identity":)";
  expected += identity;
  expected += R"(,"scalars":[],"segments":[[0,)" + said + R"(]],"structure":null})";
  return head == expected ? std::optional(bytes) : std::nullopt;
}

std::string document_digest(std::span<const std::byte> document) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(document.data(), document.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("OpenSSL has no SHA-256");
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "sha256:";
  for (const unsigned char byte : std::span(digest).first(size)) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace flashboot
