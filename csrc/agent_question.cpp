#include "agent_question.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace flashboot {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

AgentQuestion::~AgentQuestion() { drop(); }

void AgentQuestion::drop() {
  const std::lock_guard lock(mutex_);
  if (socket_ >= 0) {
    (void)close(std::exchange(socket_, -1));
  }
}

void AgentQuestion::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (socket_ >= 0) {
    (void)shutdown(socket_, SHUT_RDWR);  // wakes whoever waits, who closes it
  }
}

bool AgentQuestion::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

int AgentQuestion::descriptor() const {
  const std::lock_guard lock(mutex_);
  return socket_;
}

int AgentQuestion::hand_over() {
  const std::lock_guard lock(mutex_);
  return std::exchange(socket_, -1);
}

bool AgentQuestion::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return false;
  }
  path.copy(address.sun_path, path.size());
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    return false;
  }
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // A full backlog is EAGAIN: no answer, so that it is Python that waits.
  return socket_ >= 0 && ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

bool AgentQuestion::tell(std::string_view message) {
  {
    const std::lock_guard lock(mutex_);
    if (socket_ < 0 || stopped_) {
      return false;
    }
    if (send(socket_, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
        static_cast<ssize_t>(message.size())) {
      return true;
    }
    (void)shutdown(socket_, SHUT_RDWR);  // a thread may wait on it
  }
  return false;
}

bool AgentQuestion::wait(std::chrono::milliseconds patience) const {
  int descriptor = -1;
  {
    const std::lock_guard lock(mutex_);
    descriptor = stopped_ ? -1 : socket_;
  }
  if (descriptor < 0) {
    return true;
  }
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd one{descriptor, POLLIN, 0};
    const int got = poll(&one, 1, left > 0 ? static_cast<int>(left) : 0);
    if (got > 0 || (got < 0 && errno != EINTR)) {
      return true;
    }
    if (left <= 0) {
      return false;
    }
  }
}

std::optional<AgentQuestion::Answer> AgentQuestion::receive() const {
  std::string packet(kMostMessage + 1, '\0');
  iovec into{packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &into;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) {
    return std::nullopt;
  }
  Answer answer;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
      std::array<int, kMostDescriptors> came{};
      const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(came.data(), CMSG_DATA(part), count * sizeof(int));
      answer.descriptors.insert(answer.descriptors.end(), came.begin(), came.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }
  packet.resize(static_cast<std::size_t>(got));
  answer.packet = std::move(packet);
  if (got == 0 || answer.packet.size() > kMostMessage || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    for (const int descriptor : answer.descriptors) {
      (void)close(descriptor);
    }
    return std::nullopt;
  }
  return answer;
}

std::optional<AgentQuestion::Answer> AgentQuestion::ask(const std::string& path, std::string_view hello,
                                                        std::chrono::milliseconds patience) {
  if (connect(path) && tell(hello) && wait(patience) && !stopped()) {
    if (auto answer = receive()) {
      return answer;
    }
  }
  drop();
  return std::nullopt;
}

}  // namespace flashboot
