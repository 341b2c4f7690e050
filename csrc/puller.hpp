// The child's side of the chunk protocol, once the metadata is through: pulls one lane over one stream.
//
// What always holds: bytes land at their place in the arena and nowhere else, in order; a reply that does not answer the
// oldest request ends the stream; whatever comes, at most one Trouble body and one scratch buffer of memory is used; the
// place is kept between two calls, inside a frame too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "advance.hpp"
#include "clock.hpp"
#include "frames.hpp"
#include "lane.hpp"
#include "pace.hpp"
#include "reply_head.hpp"
#include "stream.hpp"

namespace flashboot {

struct PullSettings {
  std::uint32_t request_bytes;  // 1 to kMaxPull
  std::size_t in_flight;        // requests; 2 to 64, one would leave the link idle for a round trip per request
  Duration poll;                // how long the parent may hold a request for bytes that it has not yet
  Duration silence;             // without a word, beyond that
  Duration overdue_floor;       // least deadline of a request that the parent can answer
};

class LanePuller {
 public:
  // Throws std::invalid_argument for settings outside their limits.
  LanePuller(std::shared_ptr<Stream> stream, Lane lane, const PullSettings& settings);

  // Works for at most `patience`, plus the digest of a chunk. Throws StreamTorn, StreamTimeout, StreamBroken,
  // MarksClosed.
  [[nodiscard]] Advance advance(Duration patience);

 private:
  struct Asked {
    std::uint64_t offset;
    std::uint32_t length;
    Time at;
    [[nodiscard]] std::uint64_t end() const noexcept { return offset + length; }
  };
  // What replies mean now. After an empty one all others in flight are empty; after a wrong chunk none is wanted.
  enum class Mode { kInOrder, kGoingBack, kDropping };
  enum class Took { kNothing, kSome, kDiffers, kOverdue, kTrouble };

  [[nodiscard]] State work(Stream::Turn& turn, Time deadline);
  void ask(Stream::Turn& turn);
  [[nodiscard]] Took take(Stream::Turn& turn);
  [[nodiscard]] Took take_data(const DataFrame& data);
  [[nodiscard]] Took take_tail(Stream::Turn& turn);
  void reply_done(bool with_bytes);
  void wait(Stream::Turn& turn, Time now, Time deadline);

  std::shared_ptr<Stream> stream_;
  Lane lane_;
  PullSettings settings_;
  Pace pace_;
  std::string what_;  // for messages

  std::deque<Asked> asked_;        // without a complete reply, oldest first
  std::uint64_t ask_;              // the next request begins here
  std::vector<std::byte> outbox_;  // requests that the socket has not taken yet
  Mode mode_ = Mode::kInOrder;
  ReplyHead head_;
  std::uint32_t tail_ = 0;  // bytes of the oldest request that are still to come
  std::vector<std::byte> scratch_;
  bool over_ = false;  // a Trouble frame came

  std::uint64_t parent_end_ = 0;
  bool starved_ = false;
  std::uint64_t bytes_in_ = 0;
  std::optional<Time> last_byte_;
  std::optional<Time> left_at_;  // when the last call returned
};

}  // namespace flashboot
