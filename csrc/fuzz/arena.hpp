// What the targets of the chunk protocol share: the right bytes of an arena, its marks, and a socket to a hostile peer.
#pragma once

#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "digest.hpp"
#include "marks.hpp"
#include "pattern.hpp"
#include "require.hpp"

namespace flashboot::fuzz {

// The right bytes and their digest table.
struct Truth {
  std::vector<std::byte> bytes;
  std::vector<std::byte> digests;

  explicit Truth(std::size_t size) : bytes(pattern(size, size)), digests(chunk_count(size, kDigestChunk) * 8) {
    chunk_digests(bytes, kDigestChunk, 1, digests.data());
  }
};

// Marks of a new arena: nothing is verified.
inline std::shared_ptr<Marks> new_marks(std::uint64_t nbytes, std::vector<Bounds> lanes) {
  static const int record = [] {
    const int fd = ::memfd_create("record", MFD_CLOEXEC);
    require(fd >= 0, "memfd_create");
    return fd;
  }();
  require(::ftruncate(record, 0) == 0 && ::ftruncate(record, 4096) == 0, "ftruncate");
  return std::make_shared<Marks>(record, nbytes, std::move(lanes));
}

// At most 64 of the fuzzer's own.
inline std::vector<std::byte> some_bytes(FuzzedDataProvider& input) {
  const auto bytes = input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(0, 64));
  const auto view = std::as_bytes(std::span(bytes));
  return {view.begin(), view.end()};
}

inline void change_byte(FuzzedDataProvider& input, std::span<std::byte> bytes) {
  const auto at = input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1);
  bytes[at] ^= std::byte{input.ConsumeIntegral<std::uint8_t>()};
}

// Our side of a connection to the code under test; its socket never blocks.
class Peer {
 public:
  // Gives the descriptor of the other side.
  int connect() {
    std::array<int, 2> ends{};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0, "socketpair");
    fd_ = ends[0];
    return ends[1];
  }
  Peer() = default;
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // What the socket does not take is lost, as with a peer that dies in the middle of a frame.
  void send(std::span<const std::byte> bytes) {
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // Appends what is there to `into`; gives false at the end of the stream.
  bool read(std::vector<std::byte>& into) {
    std::array<std::byte, 65536> buffer;
    while (true) {
      const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got <= 0) {
        return got < 0 && (errno == EAGAIN || errno == EINTR);
      }
      into.insert(into.end(), buffer.begin(), buffer.begin() + got);
    }
  }
  // Waits for something to read, or for the end, at most `milliseconds`.
  void wait(int milliseconds) {
    pollfd look{.fd = fd_, .events = POLLIN, .revents = 0};
    (void)::poll(&look, 1, milliseconds);
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }

 private:
  int fd_ = -1;
};

}  // namespace flashboot::fuzz
