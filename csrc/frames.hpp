// The frames of the chunk protocol that move bytes (agent/flashboot_agent/wire/frames.py has all, and says what they
// mean). Pure: no I/O.
//
// What always holds: whatever bytes come, the answer is a valid value or FrameError; lengths are checked against their
// limits before anybody makes room for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace flashboot {

inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kPullBytes = 16;  // bodies
inline constexpr std::size_t kDataBytes = 20;

inline constexpr std::uint32_t kMaxPull = 4 << 20;
inline constexpr std::uint32_t kMaxWaitMs = 60'000;
inline constexpr std::uint32_t kMaxTrouble = 32768;
inline constexpr std::uint64_t kMaxArena = std::uint64_t{1} << 50;

// These bytes make no frame of this protocol; the stream is lost.
struct FrameError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class FrameKind : std::uint8_t { kMetaRequest = 1, kMetaReply = 2, kPull = 3, kData = 4, kTrouble = 5 };

struct FrameHeader {
  FrameKind kind;
  std::uint32_t body_bytes;  // within the limits of the kind
};

// Ask for [offset, offset + length) once all of it is verified, at most `wait_ms` from now.
struct PullFrame {
  std::uint64_t offset;
  std::uint32_t length;
  std::uint32_t wait_ms;
  [[nodiscard]] std::uint64_t end() const noexcept { return offset + length; }
};

// `length` bytes from `offset` follow; `watermark` is the end of the sender's verified run that contains `offset`.
struct DataFrame {
  std::uint64_t offset;
  std::uint64_t watermark;
  std::uint32_t length;
};

[[nodiscard]] FrameHeader parse_header(std::span<const std::byte, kHeaderBytes> bytes);
[[nodiscard]] PullFrame parse_pull(std::span<const std::byte, kPullBytes> body);
[[nodiscard]] DataFrame parse_data(std::span<const std::byte, kDataBytes> body);

[[nodiscard]] std::array<std::byte, kHeaderBytes + kPullBytes> encode(const PullFrame& frame) noexcept;
[[nodiscard]] std::array<std::byte, kHeaderBytes + kDataBytes> encode(const DataFrame& frame) noexcept;

}  // namespace flashboot
