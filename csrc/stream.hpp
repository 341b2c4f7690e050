// A connected stream socket with a deadline on everything, plain or under TLS.
//
// What always holds: no operation outlives its deadline, however slowly bytes trickle; bytes go between the kernel and
// the caller's memory without a copy of ours; `close` may come from any thread, wakes whoever waits, and neither the
// descriptor nor the TLS session goes away under a user.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clock.hpp"
#include "tls.hpp"

namespace flashboot {

class Stream {
 public:
  // Takes `fd` over when it succeeds, and makes it non-blocking. Throws std::invalid_argument when it is no stream
  // socket. `label` is how messages call the peer.
  Stream(int fd, std::string label);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] std::string label() const;
  void set_label(std::string label);

  // Throws TlsRefused, StreamTimeout, StreamBroken. After a failure the stream is good for nothing but closing.
  void start_tls(std::shared_ptr<const TlsContext> context, const std::optional<std::string>& expected_uri,
                 Duration patience);
  [[nodiscard]] std::vector<std::string> peer_uris() const;
  [[nodiscard]] std::optional<std::string> tls() const;

  // Fills all of `into` and returns its size, or returns 0 when the stream ended before its first byte.
  std::size_t recv_into(std::span<std::byte> into, Duration silence, Duration whole, std::string_view what);
  // Sends both completely.
  void send(std::span<const std::byte> head, std::span<const std::byte> tail, Duration silence, Duration whole,
            std::string_view what);

  // Whether the peer ended or reset the connection, as far as is known without waiting. Looks past unread bytes.
  [[nodiscard]] bool peer_is_gone();
  // Ends our direction, reads and drops what still comes, closes: closing with unread bytes would send a reset, which
  // can overtake our last frame.
  void finish(Duration patience);
  void close() noexcept;
  [[nodiscard]] bool closed() const;

  class Turn;

 private:
  class Use;
  void release() noexcept;

  mutable std::mutex lock_;  // of all that follows, but for what the thread in turn alone touches
  int fd_;
  std::string label_;
  int users_ = 0;
  bool closed_ = false;
  bool in_turn_ = false;
  std::string refused_;  // why TLS failed; nothing goes over such a stream
  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<TlsSession> session_;
};

// What to wait for.
struct Interest {
  bool receive = false;
  bool send = false;
  bool hangup = false;  // the peer ended its direction
};

// Exclusive use of a stream for reading and writing, for a loop that keeps its own place and never blocks but in `wait`.
// Throws std::logic_error when another thread has its turn, StreamBroken when the stream is closed; all messages begin
// with the label and end with `what`.
class Stream::Turn {
 public:
  Turn(Stream& stream, std::string_view what);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // For the messages from now on.
  void now(std::string_view what) { what_ = what; }

  // At least one byte; 0 at the end of the stream; nothing when none is there yet.
  [[nodiscard]] std::optional<std::size_t> recv(std::span<std::byte> into);
  // How many bytes of `head`, then `tail`, were taken; 0 when the socket takes none now. A send that was taken in part
  // must go on with the rest of the same bytes.
  [[nodiscard]] std::size_t send(std::span<const std::byte> head, std::span<const std::byte> tail);
  // Waits until one of `interest` (what the last recv or send came to nothing for) may go on, the stream is closed, or
  // `until`; gives false at `until`.
  bool wait(Interest interest, Time until);
  // Throws StreamBroken when the stream was closed on our side.
  void check_open() const;

  [[noreturn]] void broken(const std::string& why) const;
  [[noreturn]] void timeout(const std::string& why) const;
  [[nodiscard]] std::string message(const std::string& why) const;

 private:
  template <typename Operation>
  [[nodiscard]] Step in_tls(Operation operation) const;
  void check_usable() const;

  Stream& stream_;
  std::string_view what_;
  short recv_event_;
  short send_event_;
};

}  // namespace flashboot
