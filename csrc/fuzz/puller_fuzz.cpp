// A child with a hostile parent: honest replies, empty ones, wrong bytes and any bytes at all, in any order and cut
// anywhere. Whatever comes, only the lane is written, and no byte is marked as verified that is not the right one.
#include "puller.hpp"

#include <cstring>
#include <string>

#include "arena.hpp"
#include "errors.hpp"

namespace {

using namespace flashboot;
using namespace flashboot::fuzz;

constexpr std::byte kUntouched{0xee};
constexpr std::size_t kSmall = 20'001;
constexpr std::size_t kLarge = 2 * kDigestChunk + 4321;
constexpr std::size_t kSteps = 400;

// The parent; knows what it was asked for and what it answered, and sends when told.
class Parent {
 public:
  Parent(FuzzedDataProvider& input, const Truth& truth, Peer& peer) : input_(input), truth_(truth), peer_(peer) {}

  void act() {
    peer_.read(inbox_);
    switch (input_.ConsumeIntegralInRange(0, 9)) {
      case 0:
        return send(some_bytes(input_));
      case 1:
        return reply(true, 0);
      case 2:
        return reply(false, input_.ConsumeIntegralInRange<std::size_t>(0, 3));
      case 3:
        return trouble();
      case 4:
        return peer_.end_sending();
      default:
        return reply(false, 0);
    }
  }

 private:
  void reply(bool empty, std::size_t wrong) {
    constexpr std::size_t kRequest = kHeaderBytes + kPullBytes;
    if (inbox_.size() < kRequest) {
      return;
    }
    const PullFrame pull = parse_pull(std::span<const std::byte>(inbox_).subspan<kHeaderBytes, kPullBytes>());
    inbox_.erase(inbox_.begin(), inbox_.begin() + kRequest);
    require(pull.end() <= truth_.bytes.size(), "asked beyond the arena");
    const std::uint64_t watermark = empty ? pull.offset : truth_.bytes.size();
    const auto head = encode(DataFrame{pull.offset, watermark, empty ? 0 : pull.length});
    std::vector<std::byte> bytes(head.begin(), head.end());
    if (!empty) {
      const auto tail = std::span(truth_.bytes).subspan(pull.offset, pull.length);
      bytes.insert(bytes.end(), tail.begin(), tail.end());
    }
    for (; wrong > 0; --wrong) {
      change_byte(input_, bytes);
    }
    send(bytes);
  }

  void trouble() {
    const std::string body = input_.ConsumeRandomLengthString(64);
    std::vector<std::byte> bytes{std::byte{'F'}, std::byte{'B'}, std::byte{'C'}, std::byte{'H'}};
    for (const int each : {2, 5, 0, 0, static_cast<int>(body.size()), 0, 0, 0}) {
      bytes.push_back(static_cast<std::byte>(each));
    }
    const auto text = std::as_bytes(std::span(body));
    bytes.insert(bytes.end(), text.begin(), text.end());
    send(bytes);
  }

  // At once, or a part now and the rest with the next act.
  void send(std::vector<std::byte> bytes) {
    rest_.insert(rest_.end(), bytes.begin(), bytes.end());
    const std::size_t now =
        input_.ConsumeBool() ? rest_.size() : input_.ConsumeIntegralInRange<std::size_t>(0, rest_.size());
    peer_.send(std::span(rest_).first(now));
    rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(now));
  }

  FuzzedDataProvider& input_;
  const Truth& truth_;
  Peer& peer_;
  std::vector<std::byte> inbox_;
  std::vector<std::byte> rest_;
};

// What must hold after every call.
class Watch {
 public:
  Watch(const Marks& marks, std::size_t lane, const std::vector<std::byte>& memory, const Truth& truth)
      : marks_(marks), lane_(lane), memory_(memory), truth_(truth), checked_(marks.bounds(lane).start) {}
  // Also when the puller threw.
  ~Watch() {
    look();
    const Bounds bounds = marks_.bounds(lane_);
    static const std::vector<std::byte> blank(kLarge, kUntouched);
    const auto untouched = [](std::span<const std::byte> part) {  // a loop would take most of the time of the target
      return std::memcmp(part.data(), blank.data(), part.size()) == 0;
    };
    const std::span all(memory_);
    require(untouched(all.first(bounds.start)) && untouched(all.subspan(bounds.end)), "written outside the lane");
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void look() {
    const Bounds bounds = marks_.bounds(lane_);
    const std::uint64_t verified = marks_.verified(lane_);
    require(checked_ <= verified && verified <= marks_.received(lane_) && marks_.received(lane_) <= bounds.end,
            "marks out of order");
    require(std::memcmp(memory_.data() + checked_, truth_.bytes.data() + checked_, verified - checked_) == 0,
            "a wrong byte is marked as verified");
    checked_ = verified;
  }

 private:
  const Marks& marks_;
  std::size_t lane_;
  const std::vector<std::byte>& memory_;
  const Truth& truth_;
  std::uint64_t checked_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Truth small(kSmall);
  static const Truth large(kLarge);
  FuzzedDataProvider input(data, size);
  const bool is_small = input.ConsumeBool();
  const Truth& truth = is_small ? small : large;
  const std::size_t nbytes = truth.bytes.size();
  const auto marks = new_marks(nbytes, is_small ? std::vector<Bounds>{{0, nbytes}}
                                                : std::vector<Bounds>{{0, kDigestChunk}, {kDigestChunk, nbytes}});
  const std::size_t number = input.ConsumeIntegralInRange<std::size_t>(0, marks->lanes() - 1);
  std::vector<std::byte> memory(nbytes, kUntouched);
  Lane lane(marks, number, memory, truth.digests);

  Peer peer;
  const auto stream = std::make_shared<Stream>(peer.connect(), "parent");
  const std::uint32_t least = is_small ? 1000 : 60'000;
  const PullSettings settings{.request_bytes = input.ConsumeIntegralInRange<std::uint32_t>(least, 150'000),
                              .in_flight = input.ConsumeIntegralInRange<std::size_t>(2, 6),
                              .poll = std::chrono::milliseconds(1),
                              .silence = std::chrono::seconds(60),
                              .overdue_floor = std::chrono::seconds(60)};
  LanePuller puller(stream, std::move(lane), settings);
  Parent parent(input, truth, peer);
  Watch watch(*marks, number, memory, truth);
  try {
    for (std::size_t step = 0; step < kSteps && input.remaining_bytes() > 0; ++step) {
      parent.act();
      const std::size_t calls = input.ConsumeIntegralInRange<std::size_t>(1, 8);  // each makes about one system call
      for (std::size_t i = 0; i < calls; ++i) {
        const Advance got = puller.advance(Duration::zero());
        watch.look();
        require(got.state != State::kDone || marks->verified(number) == marks->bounds(number).end, "done too early");
        if (got.state == State::kDone || got.state == State::kTrouble) {
          return 0;
        }
      }
    }
  } catch (const StreamTorn&) {
  } catch (const StreamBroken&) {
  }
  return 0;
}
