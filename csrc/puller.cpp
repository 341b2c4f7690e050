#include "puller.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "errors.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kScratch = 64 << 10;
// How often a wait looks whether the arena is still there.
constexpr Duration kLook = std::chrono::milliseconds(100);

}  // namespace

LanePuller::LanePuller(std::shared_ptr<Stream> stream, Lane lane, const PullSettings& settings)
    : stream_(std::move(stream)), lane_(std::move(lane)), settings_(settings), pace_(settings.overdue_floor),
      what_("pulling lane " + std::to_string(lane_.number())), ask_(lane_.received()) {
  if (settings.request_bytes == 0 || settings.request_bytes > kMaxPull) {
    throw std::invalid_argument("request_bytes is " + std::to_string(settings.request_bytes) + "; allowed are 1 to " +
                                std::to_string(kMaxPull));
  }
  if (settings.in_flight < 2 || settings.in_flight > 64) {
    throw std::invalid_argument("in_flight is " + std::to_string(settings.in_flight) + "; allowed are 2 to 64");
  }
  if (settings.poll > std::chrono::milliseconds(kMaxWaitMs) || settings.silence <= Duration::zero()) {
    throw std::invalid_argument("poll must be at most 60 seconds, and silence above 0");
  }
}

Advance LanePuller::advance(Duration patience) {
  const Time began = Clock::now();
  pace_.away(began - left_at_.value_or(began));
  last_byte_ = last_byte_.value_or(began);
  bytes_in_ = 0;
  Stream::Turn turn(*stream_, what_);
  Advance result;
  result.state = work(turn, began + patience);
  left_at_ = Clock::now();
  result.offset = lane_.received();
  result.parent_end = parent_end_;
  result.starved = starved_;
  result.bytes_in = bytes_in_;
  result.silent_seconds = to_seconds(*left_at_ - *last_byte_);
  if (result.state == State::kTrouble) {
    result.trouble = head_.trouble();
  }
  return result;
}

State LanePuller::work(Stream::Turn& turn, Time deadline) {
  if (over_) {
    return State::kTrouble;
  }
  if (!lane_.landed(0)) {  // what another parent sent before
    ask_ = lane_.received();
    return State::kDiffers;
  }
  while (!lane_.done()) {
    ask(turn);
    const Took took = take(turn);
    const Time now = Clock::now();
    switch (took) {
      case Took::kSome:
        break;
      case Took::kDiffers:
        return State::kDiffers;
      case Took::kOverdue:
        return State::kOverdue;
      case Took::kTrouble:
        over_ = true;
        return State::kTrouble;
      case Took::kNothing:
        if (const auto overdue = pace_.deadline(); overdue && now >= *overdue) {
          return State::kOverdue;
        }
        wait(turn, now, deadline);
    }
    if (now >= deadline && !lane_.done()) {
      return State::kGoing;
    }
  }
  return State::kDone;
}

// Keeps `in_flight` requests on their way. They end at multiples of their size, from the lane's start, so that requests
// of all children are for the same pieces.
void LanePuller::ask(Stream::Turn& turn) {
  const Bounds bounds = lane_.bounds();
  const auto wait_ms =
      static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(settings_.poll).count());
  while (mode_ == Mode::kInOrder && asked_.size() < settings_.in_flight && ask_ < bounds.end) {
    const std::uint64_t piece = settings_.request_bytes - (ask_ - bounds.start) % settings_.request_bytes;
    const auto length = static_cast<std::uint32_t>(std::min(piece, bounds.end - ask_));
    const auto frame = encode(PullFrame{ask_, length, wait_ms});
    outbox_.insert(outbox_.end(), frame.begin(), frame.end());
    asked_.push_back({ask_, length, Clock::now()});
    ask_ += length;
    if (asked_.size() == 1 && ask_ <= parent_end_) {
      pace_.due(asked_.front().at);
    }
  }
  if (!outbox_.empty()) {
    const std::size_t sent = turn.send(outbox_, {});
    outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(sent));
  }
}

// One system call.
LanePuller::Took LanePuller::take(Stream::Turn& turn) {
  if (tail_ != 0) {
    return take_tail(turn);
  }
  switch (head_.take(turn)) {
    case ReplyHead::Got::kNothing:
      return Took::kNothing;
    case ReplyHead::Got::kPart:
      last_byte_ = Clock::now();
      return Took::kSome;
    case ReplyHead::Got::kTrouble:
      return Took::kTrouble;
    case ReplyHead::Got::kData:
      break;
  }
  last_byte_ = Clock::now();
  try {
    return take_data(head_.data());
  } catch (const FrameError& error) {
    throw StreamTorn(turn.message(error.what()));
  }
}

LanePuller::Took LanePuller::take_data(const DataFrame& data) {
  if (asked_.empty()) {
    throw FrameError("a reply to no request");
  }
  const Asked& asked = asked_.front();
  if (data.offset != asked.offset || (data.length != 0 && data.length != asked.length) ||
      data.watermark > lane_.marks().nbytes()) {
    throw FrameError(std::to_string(data.length) + " bytes at " + std::to_string(data.offset) + ", watermark " +
                     std::to_string(data.watermark) + ", in answer to a pull of " + std::to_string(asked.length) + " at " +
                     std::to_string(asked.offset));
  }
  if (mode_ == Mode::kGoingBack && data.length != 0) {
    throw FrameError("bytes at " + std::to_string(data.offset) + " after an empty reply for earlier ones");
  }
  if (mode_ == Mode::kInOrder) {
    parent_end_ = data.watermark;
    starved_ = data.length == 0;
  }
  if (data.length != 0) {
    tail_ = data.length;
    pace_.due(*last_byte_);
    return Took::kSome;
  }
  // Only the first of a row of empty replies was held back until its bytes might come.
  const bool refused = mode_ == Mode::kInOrder && data.watermark >= asked.end();
  if (mode_ == Mode::kInOrder) {
    mode_ = Mode::kGoingBack;
  }
  reply_done(false);
  return refused ? Took::kOverdue : Took::kSome;
}

LanePuller::Took LanePuller::take_tail(Stream::Turn& turn) {
  const bool dropping = mode_ == Mode::kDropping;
  scratch_.resize(dropping ? kScratch : 0);
  const std::span<std::byte> space = dropping ? std::span(scratch_) : lane_.space();
  const auto got = turn.recv(space.first(std::min<std::size_t>(space.size(), tail_)));
  if (!got) {
    return Took::kNothing;
  }
  if (*got == 0) {
    turn.broken("the stream ended in the middle of a reply");
  }
  last_byte_ = Clock::now();
  tail_ -= static_cast<std::uint32_t>(*got);
  bytes_in_ += *got;
  lane_.marks().add(Counter::kBytesIn, *got);
  const bool good = dropping || lane_.landed(*got);
  if (!good) {
    mode_ = Mode::kDropping;
  }
  if (tail_ == 0) {
    reply_done(true);
  }
  return good ? Took::kSome : Took::kDiffers;
}

void LanePuller::reply_done(bool with_bytes) {
  const Time now = Clock::now();
  if (with_bytes) {
    pace_.answered(now, asked_.front().length >= settings_.request_bytes / 2);
  } else {
    pace_.forget();
  }
  asked_.pop_front();
  if (asked_.empty() && mode_ != Mode::kInOrder) {
    mode_ = Mode::kInOrder;
    ask_ = lane_.received();
  }
  if (mode_ == Mode::kInOrder && !asked_.empty() && asked_.front().end() <= parent_end_) {
    pace_.due(now);
  }
}

void LanePuller::wait(Stream::Turn& turn, Time now, Time deadline) {
  if (lane_.marks().closed()) {
    throw MarksClosed(turn.message("the arena was closed"));
  }
  // The parent may be silent while it waits for bytes; inside a reply it may not.
  const Time heard = asked_.empty() ? *last_byte_ : std::max(*last_byte_, asked_.front().at);
  const Time silent = heard + settings_.silence + (tail_ == 0 ? settings_.poll : Duration::zero());
  if (now >= silent) {
    turn.timeout("not a word for " + std::to_string(to_seconds(now - heard)) + " s");
  }
  Time until = std::min({deadline, silent, now + kLook});
  if (const auto overdue = pace_.deadline()) {
    until = std::min(until, *overdue);
  }
  (void)turn.wait({.receive = true, .send = !outbox_.empty()}, until);
}

}  // namespace flashboot
