#include "frames.hpp"

#include <algorithm>
#include <concepts>
#include <string>

namespace flashboot {
namespace {

constexpr std::array kMagic{std::byte{'F'}, std::byte{'B'}, std::byte{'C'}, std::byte{'H'}};
constexpr std::uint8_t kVersion = 2;

struct Limits {
  std::uint32_t least;
  std::uint32_t greatest;
};
constexpr std::array<Limits, 6> kLimits{
    {{1, 0}, {2, 1024}, {2, 1024}, {kPullBytes, kPullBytes}, {kDataBytes, kDataBytes}, {2, kMaxTrouble}}};

// Little-endian on the wire, whatever this machine is.
template <std::unsigned_integral T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) {
    value = static_cast<T>(value << 8 | std::to_integer<T>(bytes[at + i]));
  }
  return value;
}

template <>
std::uint8_t load(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

template <std::unsigned_integral T>
void store(std::span<std::byte> bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <std::size_t body_bytes>
std::array<std::byte, kHeaderBytes + body_bytes> with_header(FrameKind kind) {
  std::array<std::byte, kHeaderBytes + body_bytes> bytes{};
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  store<std::uint8_t>(bytes, 4, kVersion);
  store<std::uint8_t>(bytes, 5, static_cast<std::uint8_t>(kind));
  store<std::uint32_t>(bytes, 8, body_bytes);
  return bytes;
}

std::string range(std::uint64_t offset, std::uint32_t length) {
  return std::to_string(length) + " bytes at " + std::to_string(offset);
}

}  // namespace

FrameHeader parse_header(std::span<const std::byte, kHeaderBytes> bytes) {
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) {
    throw FrameError("no chunk protocol: the frame begins with other bytes than FBCH");
  }
  if (const auto version = load<std::uint8_t>(bytes, 4); version != kVersion) {
    throw FrameError("the peer speaks version " + std::to_string(version) + " of the chunk protocol, we speak " +
                     std::to_string(kVersion));
  }
  const auto kind = load<std::uint8_t>(bytes, 5);
  if (kind == 0 || kind >= kLimits.size()) {
    throw FrameError("unknown frame type " + std::to_string(kind));
  }
  if (load<std::uint16_t>(bytes, 6) != 0) {
    throw FrameError("reserved header bits are set");
  }
  const auto length = load<std::uint32_t>(bytes, 8);
  const auto [least, greatest] = kLimits[kind];
  if (length < least || length > greatest) {
    throw FrameError("a frame of type " + std::to_string(kind) + " with " + std::to_string(length) +
                     " bytes; allowed are " + std::to_string(least) + " to " + std::to_string(greatest));
  }
  return {static_cast<FrameKind>(kind), length};
}

PullFrame parse_pull(std::span<const std::byte, kPullBytes> body) {
  const PullFrame pull{load<std::uint64_t>(body, 0), load<std::uint32_t>(body, 8), load<std::uint32_t>(body, 12)};
  if (pull.length == 0 || pull.length > kMaxPull || pull.offset > kMaxArena - pull.length) {
    throw FrameError("a pull of " + range(pull.offset, pull.length) + ": beyond the limits");
  }
  if (pull.wait_ms > kMaxWaitMs) {
    throw FrameError("a pull that waits " + std::to_string(pull.wait_ms) + " ms");
  }
  return pull;
}

DataFrame parse_data(std::span<const std::byte, kDataBytes> body) {
  const DataFrame data{load<std::uint64_t>(body, 0), load<std::uint64_t>(body, 8), load<std::uint32_t>(body, 16)};
  if (data.length > kMaxPull || data.watermark > kMaxArena || data.offset > kMaxArena) {
    throw FrameError("data of " + range(data.offset, data.length) + ": beyond the limits");
  }
  if (data.length != 0 && data.offset + data.length > data.watermark) {
    throw FrameError("data of " + range(data.offset, data.length) + " beyond the sender's own watermark " +
                     std::to_string(data.watermark));
  }
  return data;
}

std::array<std::byte, kHeaderBytes + kPullBytes> encode(const PullFrame& frame) noexcept {
  auto bytes = with_header<kPullBytes>(FrameKind::kPull);
  store(bytes, kHeaderBytes, frame.offset);
  store(bytes, kHeaderBytes + 8, frame.length);
  store(bytes, kHeaderBytes + 12, frame.wait_ms);
  return bytes;
}

std::array<std::byte, kHeaderBytes + kDataBytes> encode(const DataFrame& frame) noexcept {
  auto bytes = with_header<kDataBytes>(FrameKind::kData);
  store(bytes, kHeaderBytes, frame.offset);
  store(bytes, kHeaderBytes + 8, frame.watermark);
  store(bytes, kHeaderBytes + 16, frame.length);
  return bytes;
}

}  // namespace flashboot
