// Any bytes make a frame within the limits, which encodes to the same bytes again, or a FrameError.
#include "frames.hpp"

#include <algorithm>
#include <span>

#include "require.hpp"

using namespace flashboot;

namespace {

template <std::size_t size>
std::span<const std::byte, size> body(std::span<const std::byte> bytes) {
  return bytes.subspan<kHeaderBytes, size>();
}

void try_frame(std::span<const std::byte> bytes) {
  const FrameHeader header = parse_header(bytes.first<kHeaderBytes>());
  if (header.kind == FrameKind::kPull && bytes.size() >= kHeaderBytes + kPullBytes) {
    require(header.body_bytes == kPullBytes, "a Pull of another length");
    const PullFrame pull = parse_pull(body<kPullBytes>(bytes));
    require(pull.length > 0 && pull.length <= kMaxPull && pull.end() > pull.offset && pull.end() <= kMaxArena &&
                pull.wait_ms <= kMaxWaitMs,
            "a Pull beyond the limits");
    require(std::ranges::equal(encode(pull), bytes.first(kHeaderBytes + kPullBytes)), "a Pull encodes to other bytes");
  } else if (header.kind == FrameKind::kData && bytes.size() >= kHeaderBytes + kDataBytes) {
    require(header.body_bytes == kDataBytes, "a Data of another length");
    const DataFrame data = parse_data(body<kDataBytes>(bytes));
    require(data.length <= kMaxPull && data.offset <= kMaxArena && data.watermark <= kMaxArena &&
                (data.length == 0 || data.offset + data.length <= data.watermark),
            "a Data beyond the limits");
    require(std::ranges::equal(encode(data), bytes.first(kHeaderBytes + kDataBytes)), "a Data encodes to other bytes");
  } else {
    require(header.body_bytes <= kMaxTrouble, "a body beyond the limits");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kHeaderBytes) {
    return -1;  // not worth keeping
  }
  try {
    try_frame(std::as_bytes(std::span(data, size)));
  } catch (const FrameError&) {
    return 0;
  }
  return 0;
}
