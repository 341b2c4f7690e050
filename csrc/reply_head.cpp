#include "reply_head.hpp"

#include <span>

#include "errors.hpp"

namespace flashboot {

ReplyHead::Got ReplyHead::take(Stream::Turn& turn) {
  const auto got = turn.recv(room());
  if (!got) {
    return Got::kNothing;
  }
  if (*got == 0) {
    turn.broken(have_ == 0 ? "it ended the connection" : "the stream ended in the middle of a frame");
  }
  have_ += *got;
  if (have_ < want_) {
    return Got::kPart;
  }
  try {
    return complete();
  } catch (const FrameError& error) {
    throw StreamTorn(turn.message(error.what()));
  }
}

std::span<std::byte> ReplyHead::room() noexcept {
  const std::span<std::byte> all =
      in_trouble_ ? std::as_writable_bytes(std::span(trouble_)) : std::span<std::byte>(bytes_);
  return all.subspan(have_, want_ - have_);
}

// Header or body is there.
ReplyHead::Got ReplyHead::complete() {
  const std::span<const std::byte> bytes(bytes_);
  if (in_trouble_) {
    in_trouble_ = false;
    have_ = 0;
    want_ = kHeaderBytes;
    return Got::kTrouble;
  }
  if (want_ == bytes.size()) {
    data_ = parse_data(bytes.subspan<kHeaderBytes, kDataBytes>());
    have_ = 0;
    want_ = kHeaderBytes;
    return Got::kData;
  }
  const FrameHeader header = parse_header(bytes.first<kHeaderBytes>());
  if (header.kind == FrameKind::kData) {
    want_ = bytes.size();
  } else if (header.kind == FrameKind::kTrouble) {
    trouble_.assign(header.body_bytes, '\0');
    in_trouble_ = true;
    have_ = 0;
    want_ = header.body_bytes;
  } else {
    throw FrameError("a frame of type " + std::to_string(static_cast<int>(header.kind)) + " in answer to a pull");
  }
  return Got::kPart;
}

}  // namespace flashboot
