// TLS 1.3 with certificates on both sides, over a socket that somebody else owns.
//
// What always holds: nothing is read or written for the user before the handshake has proved that the peer holds a
// certificate of our CA; no call waits; SIGPIPE is never raised.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashboot {

struct SslDeleter {
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
};

// What one side shows and whom it believes. Immutable; a rotation makes a new one, and streams keep theirs.
class TlsContext {
 public:
  // All PEM; `certificate` may be followed by its chain, `ca` may be several. Throws std::invalid_argument that names
  // the part which can't be used.
  TlsContext(std::string_view certificate, std::string_view key, std::string_view ca, bool server);

  [[nodiscard]] SSL_CTX* get() const noexcept { return context_.get(); }
  [[nodiscard]] bool server() const noexcept { return server_; }

 private:
  std::unique_ptr<SSL_CTX, SslDeleter> context_;
  bool server_;
};

// How a step on a non-blocking socket ended.
enum class Step { kDone, kWantsRead, kWantsWrite, kEnded };

// One session. Used by one thread at a time.
class TlsSession {
 public:
  // `fd` stays the caller's and outlives this object.
  TlsSession(const TlsContext& context, int fd);

  // The next step of the handshake. Throws TlsRefused with the reason, or std::system_error. kEnded: the peer hung up.
  [[nodiscard]] Step handshake();

  // At most one of these is unfinished at a time; a send that wanted to wait must be repeated with the same bytes, and
  // may add more. Throw StreamBroken with the reason.
  [[nodiscard]] Step recv(std::span<std::byte> into, std::size_t& got);
  [[nodiscard]] Step send(std::span<const std::byte> from, std::size_t& sent);

  // Say that no more will be sent, if that can be done without waiting.
  void say_goodbye() noexcept;

  [[nodiscard]] const std::vector<std::string>& peer_uris() const noexcept { return peer_uris_; }
  // Protocol and cipher.
  [[nodiscard]] std::string description() const;

 private:
  struct Socket {
    int fd;
    bool ended = false;
    int error = 0;  // errno of the system call that failed last
  };
  friend struct SocketBio;

  [[nodiscard]] Step outcome(int result, const char* during);
  [[nodiscard]] std::string reason() const;

  Socket socket_;
  std::unique_ptr<SSL, SslDeleter> ssl_;
  bool failed_ = false;
  std::vector<std::string> peer_uris_;
};

}  // namespace flashboot
