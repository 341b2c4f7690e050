// The frames against their definition in wire/frames.py, byte by byte, and every limit.
#include "frames.hpp"

#include <gtest/gtest.h>

#include <string>

namespace flashboot {
namespace {

using Header = std::array<std::byte, kHeaderBytes>;

Header header(const std::string& magic, int version, int kind, int reserved, std::uint32_t length) {
  Header bytes{};
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[i] = static_cast<std::byte>(magic[i]);
    bytes[8 + i] = static_cast<std::byte>(length >> (8 * i));
  }
  bytes[4] = static_cast<std::byte>(version);
  bytes[5] = static_cast<std::byte>(kind);
  bytes[6] = static_cast<std::byte>(reserved);
  return bytes;
}

PullFrame parsed(const PullFrame& pull) {
  const auto bytes = encode(pull);
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(parse_header(all.first<kHeaderBytes>()).kind, FrameKind::kPull);
  return parse_pull(all.subspan<kHeaderBytes, kPullBytes>());
}

DataFrame parsed(const DataFrame& data) {
  const auto bytes = encode(data);
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(parse_header(all.first<kHeaderBytes>()).kind, FrameKind::kData);
  return parse_data(all.subspan<kHeaderBytes, kDataBytes>());
}

TEST(Frames, ComeBackAsTheyWere) {
  const PullFrame pull = parsed(PullFrame{0x0102030405060, 4 << 20, 60'000});
  EXPECT_EQ(pull.offset, 0x0102030405060);
  EXPECT_EQ(pull.length, 4 << 20);
  EXPECT_EQ(pull.wait_ms, 60'000);
  const DataFrame data = parsed(DataFrame{7, kMaxArena, 4096});
  EXPECT_EQ(data.offset, 7);
  EXPECT_EQ(data.watermark, kMaxArena);
  EXPECT_EQ(data.length, 4096);
}

TEST(Frames, AreLittleEndianOnTheWire) {
  const auto bytes = encode(PullFrame{0x0807060504030201, 0x0c0b0a09, 0x100f0e0d});
  const std::string head("FBCH\x02\x03\0\0\x10\0\0\0", 12);
  for (std::size_t i = 0; i < head.size(); ++i) {
    EXPECT_EQ(bytes[i], static_cast<std::byte>(head[i])) << i;
  }
  for (std::size_t i = 0; i < kPullBytes; ++i) {
    EXPECT_EQ(bytes[kHeaderBytes + i], static_cast<std::byte>(i + 1)) << i;
  }
}

TEST(Frames, HeadersOfAnotherProtocolAreRefused) {
  EXPECT_THROW((void)parse_header(header("GET ", 2, 3, 0, 16)), FrameError);
  EXPECT_THROW((void)parse_header(header("FBCH", 1, 3, 0, 16)), FrameError);
  EXPECT_THROW((void)parse_header(header("FBCH", 2, 0, 0, 16)), FrameError);
  EXPECT_THROW((void)parse_header(header("FBCH", 2, 6, 0, 16)), FrameError);
  EXPECT_THROW((void)parse_header(header("FBCH", 2, 255, 0, 16)), FrameError);
  EXPECT_THROW((void)parse_header(header("FBCH", 2, 3, 1, 16)), FrameError);
  for (const std::uint32_t length : {0u, 15u, 17u, 0xffffffffu}) {
    EXPECT_THROW((void)parse_header(header("FBCH", 2, 3, 0, length)), FrameError) << length;
  }
  EXPECT_THROW((void)parse_header(header("FBCH", 2, 5, 0, kMaxTrouble + 1)), FrameError);
  EXPECT_EQ(parse_header(header("FBCH", 2, 5, 0, kMaxTrouble)).body_bytes, kMaxTrouble);
}

TEST(Frames, PullsBeyondTheLimitsAreRefused) {
  EXPECT_THROW((void)parsed(PullFrame{0, 0, 0}), FrameError);
  EXPECT_THROW((void)parsed(PullFrame{0, kMaxPull + 1, 0}), FrameError);
  EXPECT_THROW((void)parsed(PullFrame{kMaxArena, 1, 0}), FrameError);
  EXPECT_THROW((void)parsed(PullFrame{~std::uint64_t{0}, 1, 0}), FrameError);
  EXPECT_THROW((void)parsed(PullFrame{0, 1, kMaxWaitMs + 1}), FrameError);
  EXPECT_NO_THROW((void)parsed(PullFrame{kMaxArena - 1, 1, kMaxWaitMs}));
}

TEST(Frames, DataBeyondItsOwnWatermarkIsRefused) {
  EXPECT_THROW((void)parsed(DataFrame{100, 150, 51}), FrameError);
  EXPECT_NO_THROW((void)parsed(DataFrame{100, 50, 0}));
  EXPECT_THROW((void)parsed(DataFrame{0, kMaxArena + 1, 0}), FrameError);
  EXPECT_THROW((void)parsed(DataFrame{0, kMaxArena, kMaxPull + 1}), FrameError);
  EXPECT_THROW((void)parsed(DataFrame{~std::uint64_t{0}, kMaxArena, 1}), FrameError);
}

}  // namespace
}  // namespace flashboot
