#include "server.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "errors.hpp"
#include "frames.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kRequestBytes = kHeaderBytes + kPullBytes;
// Requests that are read with one system call when a child has many in flight.
constexpr std::size_t kReadAhead = 16;
// How often a wait looks whether the child and the arena are still there.
constexpr Duration kLook = std::chrono::milliseconds(100);

class Conversation {
 public:
  Conversation(Stream& stream, Marks& marks, std::span<const std::byte> memory, Served& served,
               const std::vector<std::shared_ptr<EgressBucket>>& buckets, const ServeLimits& limits)
      : stream_(stream), turn_(stream, "serving it"), marks_(marks), memory_(memory), served_(served),
        buckets_(buckets), limits_(limits) {}

  void run() {
    while (const auto pull = next()) {
      answer(*pull);
    }
  }

 private:
  std::optional<PullFrame> next();
  void answer(const PullFrame& pull);
  [[nodiscard]] std::uint64_t wait_for_bytes(const PullFrame& pull);
  void reply(const DataFrame& data);
  void send(std::span<const std::byte> head, std::span<const std::byte> tail, Time deadline);
  [[nodiscard]] bool capped() const;
  [[nodiscard]] Duration pay(std::size_t bytes);

  Stream& stream_;
  Stream::Turn turn_;
  Marks& marks_;
  std::span<const std::byte> memory_;
  Served& served_;
  const std::vector<std::shared_ptr<EgressBucket>>& buckets_;
  ServeLimits limits_;
  std::array<std::byte, kRequestBytes * kReadAhead> inbox_;
  std::size_t have_ = 0;
  std::optional<std::uint64_t> gone_back_;  // where the last empty reply was
};

// Nothing when the child ended the stream.
std::optional<PullFrame> Conversation::next() {
  Time deadline = Clock::now() + (have_ == 0 ? limits_.idle : limits_.silence);
  while (have_ < kRequestBytes) {
    if (marks_.closed()) {
      throw MarksClosed(turn_.message("the arena was closed"));
    }
    const auto got = turn_.recv(std::span(inbox_).subspan(have_));
    if (!got) {
      const Time now = Clock::now();
      if (now >= deadline) {
        turn_.timeout(have_ == 0 ? "no request came in time" : "the rest of a request did not come in time");
      }
      (void)turn_.wait({.receive = true}, std::min(deadline, now + kLook));
    } else if (*got == 0) {
      if (have_ != 0) {
        turn_.broken("the stream ended in the middle of a request");
      }
      return std::nullopt;
    } else {
      have_ += *got;
      deadline = Clock::now() + limits_.silence;
    }
  }
  try {
    const std::span<const std::byte> request(inbox_);
    if (parse_header(request.first<kHeaderBytes>()).kind != FrameKind::kPull) {
      throw FrameError("only Pull frames may follow the metadata");
    }
    const PullFrame pull = parse_pull(request.subspan<kHeaderBytes, kPullBytes>());
    if (pull.end() > memory_.size()) {
      throw FrameError("asked for bytes up to " + std::to_string(pull.end()) + " of " + std::to_string(memory_.size()));
    }
    have_ -= kRequestBytes;
    std::memmove(inbox_.data(), inbox_.data() + kRequestBytes, have_);
    return pull;
  } catch (const FrameError& error) {
    throw StreamTorn(turn_.message(error.what()));
  }
}

void Conversation::answer(const PullFrame& pull) {
  // A request at or before the place of the last empty reply is the child's new start; it may lie before it because a
  // chunk turned out wrong.
  if (gone_back_ && pull.offset > *gone_back_) {
    reply({pull.offset, marks_.valid_end(pull.offset), 0});
    return;
  }
  gone_back_.reset();
  const std::uint64_t valid = wait_for_bytes(pull);
  if (valid < pull.end()) {
    gone_back_ = pull.offset;
    reply({pull.offset, valid, 0});
  } else {
    reply({pull.offset, valid, pull.length});
  }
}

std::uint64_t Conversation::wait_for_bytes(const PullFrame& pull) {
  const Time deadline = Clock::now() + std::chrono::milliseconds(pull.wait_ms);
  std::uint64_t valid = marks_.wait_valid(pull.offset, pull.end(), Duration::zero());
  while (valid < pull.end()) {
    const Duration left = deadline - Clock::now();
    if (left <= Duration::zero()) {
      break;
    }
    turn_.check_open();
    if (stream_.peer_is_gone()) {
      turn_.broken("it left while it waited for bytes");
    }
    valid = marks_.wait_valid(pull.offset, pull.end(), std::min(left, kLook));
  }
  return valid;
}

void Conversation::reply(const DataFrame& data) {
  const auto head = encode(data);
  auto tail = memory_.subspan(data.offset, data.length);
  std::span<const std::byte> first(head);
  Time deadline = Clock::now() + limits_.reply;
  while (!first.empty() || !tail.empty()) {
    std::size_t slice = tail.size();
    if (!tail.empty() && capped()) {
      for (const auto& bucket : buckets_) {
        slice = std::min(slice, bucket->slice());
      }
      deadline += pay(slice);
    }
    send(first, tail.first(slice), deadline);
    first = {};
    tail = tail.subspan(slice);
  }
}

void Conversation::send(std::span<const std::byte> head, std::span<const std::byte> tail, Time deadline) {
  while (!head.empty() || !tail.empty()) {
    const std::size_t sent = turn_.send(head, tail);
    if (sent == 0) {
      if (!turn_.wait({.send = true}, std::min(deadline, Clock::now() + limits_.silence))) {
        turn_.timeout("it did not take " + std::to_string(head.size() + tail.size()) + " bytes in time");
      }
      continue;
    }
    const std::size_t of_head = std::min(sent, head.size());
    head = head.subspan(of_head);
    tail = tail.subspan(sent - of_head);
    if (sent != of_head) {
      served_.add(sent - of_head);
      marks_.add(Counter::kBytesOut, sent - of_head);
    }
  }
}

bool Conversation::capped() const {
  return std::any_of(buckets_.begin(), buckets_.end(), [](const auto& bucket) { return bucket->rate() != 0; });
}

// Gives how long the buckets let us wait.
Duration Conversation::pay(std::size_t bytes) {
  const Time began = Clock::now();
  for (const auto& bucket : buckets_) {
    for (Duration wait = bucket->take(bytes); wait != Duration::zero(); wait = bucket->take(bytes)) {
      if (turn_.wait({.hangup = true}, Clock::now() + wait)) {
        turn_.broken("it left while it waited for its share of the egress cap");
      }
    }
  }
  return Clock::now() - began;
}

}  // namespace

void serve(Stream& stream, Marks& marks, std::span<const std::byte> memory, Served& served,
           const std::vector<std::shared_ptr<EgressBucket>>& buckets, const ServeLimits& limits) {
  if (memory.size() != marks.nbytes()) {
    throw std::invalid_argument("the marks are of " + std::to_string(marks.nbytes()) + " bytes, the memory has " +
                                std::to_string(memory.size()));
  }
  Conversation(stream, marks, memory, served, buckets, limits).run();
}

}  // namespace flashboot
