// The non-blocking core of a stream: one system call each, and the only place that waits for a socket.
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <stdexcept>
#include <system_error>

#include "errors.hpp"
#include "stream.hpp"

namespace flashboot {
namespace {

short event_of(Step step) { return step == Step::kWantsWrite ? POLLOUT : POLLIN; }

iovec part(std::span<const std::byte> bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};  // sendmsg only reads it
}

}  // namespace

Stream::Turn::Turn(Stream& stream, std::string_view what)
    : stream_(stream), what_(what), recv_event_(POLLIN), send_event_(POLLOUT) {
  const std::lock_guard held(stream_.lock_);
  const auto text = [this](const char* why) { return stream_.label_ + ": " + why + ", " + std::string(what_); };
  if (stream_.closed_) {
    throw StreamBroken(text("the connection was closed on our side"));
  }
  if (stream_.in_turn_) {
    throw std::logic_error(text("another thread reads or writes"));
  }
  stream_.in_turn_ = true;
  stream_.users_ += 1;
}

Stream::Turn::~Turn() {
  {
    const std::lock_guard held(stream_.lock_);
    stream_.in_turn_ = false;
  }
  stream_.release();
}

// Gives TLS's own errors the label and `what` of this turn.
template <typename Operation>
Step Stream::Turn::in_tls(Operation operation) const {
  try {
    return operation();
  } catch (const StreamBroken& error) {
    broken(error.what());
  }
}

std::optional<std::size_t> Stream::Turn::recv(std::span<std::byte> into) {
  check_usable();
  if (stream_.session_ != nullptr) {
    std::size_t got = 0;
    const Step step = in_tls([&] { return stream_.session_->recv(into, got); });
    if (step == Step::kDone) {
      return got;
    }
    if (step == Step::kEnded) {
      check_open();
      return 0;
    }
    recv_event_ = event_of(step);
    return std::nullopt;
  }
  for (;;) {
    const ssize_t got = ::recv(stream_.fd_, into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<std::size_t>(got);
    }
    if (got == 0) {
      check_open();
      return 0;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return std::nullopt;
    }
    if (errno != EINTR) {
      broken(std::generic_category().message(errno));
    }
  }
}

std::size_t Stream::Turn::send(std::span<const std::byte> head, std::span<const std::byte> tail) {
  check_usable();
  if (stream_.session_ != nullptr) {
    std::size_t sent = 0;
    const Step step = in_tls([&] { return stream_.session_->send(head.empty() ? tail : head, sent); });
    if (step == Step::kDone) {
      return sent;
    }
    if (step == Step::kEnded) {
      broken("the peer ended the connection");
    }
    send_event_ = event_of(step);
    return 0;
  }
  std::array<iovec, 2> parts{part(head), part(tail)};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  for (;;) {
    const ssize_t sent = sendmsg(stream_.fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      return static_cast<std::size_t>(sent);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return 0;
    }
    if (errno != EINTR) {
      broken(std::generic_category().message(errno));
    }
  }
}

bool Stream::Turn::wait(Interest interest, Time until) {
  pollfd watch{.fd = stream_.fd_, .events = 0, .revents = 0};
  if (interest.receive) {
    watch.events = static_cast<short>(watch.events | recv_event_);
  }
  if (interest.send) {
    watch.events = static_cast<short>(watch.events | send_event_);
  }
  if (interest.hangup) {
    watch.events = static_cast<short>(watch.events | POLLRDHUP);
  }
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count();
    if (left <= 0) {
      return false;
    }
    const timespec patience{.tv_sec = static_cast<time_t>(left / 1'000'000'000),
                            .tv_nsec = static_cast<long>(left % 1'000'000'000)};
    const int ready = ppoll(&watch, 1, &patience, nullptr);
    if (ready > 0) {
      return true;
    }
    if (ready < 0 && errno != EINTR) {
      broken(std::generic_category().message(errno));
    }
  }
}

void Stream::Turn::check_open() const {
  if (stream_.closed()) {
    broken("the connection was closed on our side");
  }
}

// Plain bytes must never follow a handshake that failed.
void Stream::Turn::check_usable() const {
  if (!stream_.refused_.empty()) {
    broken("the connection never came to TLS");
  }
}

void Stream::Turn::broken(const std::string& why) const { throw StreamBroken(message(why)); }

void Stream::Turn::timeout(const std::string& why) const { throw StreamTimeout(message(why)); }

std::string Stream::Turn::message(const std::string& why) const {
  return stream_.label() + ": " + (stream_.closed() ? "the connection was closed on our side" : why) + ", " +
         std::string(what_);
}

}  // namespace flashboot
