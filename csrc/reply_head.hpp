// The head of a parent's reply, read piece by piece.
//
// What always holds: no byte beyond the head is taken, so that the tail is still there for whoever knows its place; at
// most one Trouble body is kept.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "frames.hpp"
#include "stream.hpp"

namespace flashboot {

class ReplyHead {
 public:
  enum class Got { kNothing, kPart, kData, kTrouble };

  // One system call: nothing was there, a part was, or it completed a frame. Throws StreamTorn for anything that is no
  // Data or Trouble frame, StreamBroken (also when the stream ends).
  [[nodiscard]] Got take(Stream::Turn& turn);

  // Of the frame that was completed last.
  [[nodiscard]] const DataFrame& data() const noexcept { return data_; }
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }

 private:
  [[nodiscard]] std::span<std::byte> room() noexcept;
  [[nodiscard]] Got complete();

  std::array<std::byte, kHeaderBytes + kDataBytes> bytes_;
  std::size_t have_ = 0;  // of header, then body
  std::size_t want_ = kHeaderBytes;
  bool in_trouble_ = false;
  DataFrame data_{};
  std::string trouble_;
};

}  // namespace flashboot
