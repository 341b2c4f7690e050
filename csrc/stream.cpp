#include "stream.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "errors.hpp"

namespace flashboot {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

int option(int fd, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  if (getsockopt(fd, SOL_SOCKET, name, &value, &size) != 0) {
    throw std::invalid_argument("descriptor " + std::to_string(fd) + ": " + error_text(errno));
  }
  return value;
}

}  // namespace

// Keeps the descriptor for one operation.
class Stream::Use {
 public:
  explicit Use(Stream& stream) : stream_(stream) {
    const std::lock_guard held(stream_.lock_);
    open_ = !stream_.closed_;
    stream_.users_ += open_ ? 1 : 0;
  }
  ~Use() {
    if (open_) {
      stream_.release();
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  [[nodiscard]] explicit operator bool() const noexcept { return open_; }

 private:
  Stream& stream_;
  bool open_;
};

Stream::Stream(int fd, std::string label) : fd_(fd), label_(std::move(label)) {
  if (option(fd, SO_TYPE) != SOCK_STREAM) {
    throw std::invalid_argument("descriptor " + std::to_string(fd) + " is no stream socket");
  }
  if (const int domain = option(fd, SO_DOMAIN); domain == AF_INET || domain == AF_INET6) {
    // Buffer sizes stay with the kernel's autotuning: asking for a size would switch it off and cap the buffers.
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throw std::invalid_argument("descriptor " + std::to_string(fd) + ": " + error_text(errno));
  }
}

Stream::~Stream() { close(); }

std::string Stream::label() const {
  const std::lock_guard held(lock_);
  return label_;
}

void Stream::set_label(std::string label) {
  const std::lock_guard held(lock_);
  label_ = std::move(label);
}

void Stream::start_tls(std::shared_ptr<const TlsContext> context, const std::optional<std::string>& expected_uri,
                       Duration patience) {
  const Time deadline = Clock::now() + patience;
  Turn turn(*this, "starting TLS");
  if (session_ != nullptr) {
    throw std::logic_error(turn.message("TLS was started already"));
  }
  auto session = std::make_unique<TlsSession>(*context, fd_);
  try {
    for (Step step = session->handshake(); step != Step::kDone; step = session->handshake()) {
      turn.check_open();
      if (step == Step::kEnded) {
        turn.broken("the peer hung up");
      }
      if (!turn.wait({.receive = step == Step::kWantsRead, .send = step == Step::kWantsWrite}, deadline)) {
        turn.timeout("the peer did not answer in time");
      }
    }
    const auto& uris = session->peer_uris();
    if (expected_uri && std::find(uris.begin(), uris.end(), *expected_uri) == uris.end()) {
      std::string shown;
      for (const auto& uri : uris) {
        shown += " " + uri;
      }
      throw TlsRefused("the certificate is not of " + *expected_uri + " but of" + (shown.empty() ? " nobody" : shown));
    }
  } catch (const TlsRefused& error) {
    const std::lock_guard held(lock_);
    refused_ = error.what();
    throw TlsRefused(label_ + ": " + refused_);
  } catch (const std::exception& error) {
    const std::lock_guard held(lock_);
    refused_ = error.what();
    throw;
  }
  const std::lock_guard held(lock_);
  context_ = std::move(context);
  session_ = std::move(session);
}

std::vector<std::string> Stream::peer_uris() const {
  const std::lock_guard held(lock_);
  return session_ == nullptr ? std::vector<std::string>{} : session_->peer_uris();
}

std::optional<std::string> Stream::tls() const {
  const std::lock_guard held(lock_);
  return session_ == nullptr ? std::nullopt : std::optional(session_->description());
}

std::size_t Stream::recv_into(std::span<std::byte> into, Duration silence, Duration whole, std::string_view what) {
  Turn turn(*this, what);
  const Time deadline = Clock::now() + whole;
  std::size_t got = 0;
  while (got < into.size()) {
    const auto count = turn.recv(into.subspan(got));
    if (!count) {
      if (!turn.wait({.receive = true}, std::min(deadline, Clock::now() + silence))) {
        turn.timeout("after " + std::to_string(got) + " of " + std::to_string(into.size()) + " bytes no more came");
      }
    } else if (*count == 0) {
      if (got == 0) {
        return 0;
      }
      turn.broken("the stream ended after " + std::to_string(got) + " of " + std::to_string(into.size()) + " bytes");
    } else {
      got += *count;
    }
  }
  return got;
}

void Stream::send(std::span<const std::byte> head, std::span<const std::byte> tail, Duration silence, Duration whole,
                  std::string_view what) {
  Turn turn(*this, what);
  const Time deadline = Clock::now() + whole;
  while (!head.empty() || !tail.empty()) {
    const std::size_t sent = turn.send(head, tail);
    if (sent == 0 && !turn.wait({.send = true}, std::min(deadline, Clock::now() + silence))) {
      turn.timeout(std::to_string(head.size() + tail.size()) + " bytes were not taken");
    }
    const std::size_t of_head = std::min(sent, head.size());
    head = head.subspan(of_head);
    tail = tail.subspan(sent - of_head);
  }
}

bool Stream::peer_is_gone() {
  const Use use(*this);
  if (!use) {
    return true;
  }
  pollfd watch{.fd = fd_, .events = POLLRDHUP, .revents = 0};
  return poll(&watch, 1, 0) > 0;
}

void Stream::finish(Duration patience) {
  const Time deadline = Clock::now() + patience;
  try {
    Turn turn(*this, "ending the connection");
    if (session_ != nullptr) {
      session_->say_goodbye();
    }
    if (shutdown(fd_, SHUT_WR) == 0) {
      std::array<std::byte, 4096> scratch;
      // Straight from the socket, also under TLS: nobody wants to know what it says.
      for (ssize_t got = 1; got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));) {
        turn.check_open();
        if (!turn.wait({.receive = true}, deadline)) {
          break;
        }
        got = ::recv(fd_, scratch.data(), scratch.size(), MSG_DONTWAIT);
      }
    }
  } catch (const StreamBroken&) {
    // It is over already, which is what we are here for.
  }
  close();
}

void Stream::close() noexcept {
  const std::lock_guard held(lock_);
  if (closed_) {
    return;
  }
  closed_ = true;
  (void)shutdown(fd_, SHUT_RDWR);  // wakes whoever polls; ENOTCONN: the peer was faster
  if (users_ == 0) {
    ::close(fd_);
  }
}

bool Stream::closed() const {
  const std::lock_guard held(lock_);
  return closed_;
}

void Stream::release() noexcept {
  const std::lock_guard held(lock_);
  users_ -= 1;
  if (closed_ && users_ == 0) {
    ::close(fd_);
  }
}

}  // namespace flashboot
