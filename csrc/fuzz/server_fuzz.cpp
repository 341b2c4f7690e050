// A parent with a hostile child: valid requests, requests beyond the limits and any bytes at all, cut anywhere, while
// the arena fills. Whatever comes, replies are frames in the order of the requests, and their bytes are verified ones.
#include "server.hpp"

#include <deque>
#include <thread>

#include "arena.hpp"
#include "errors.hpp"
#include "frames.hpp"

namespace {

using namespace flashboot;
using namespace flashboot::fuzz;

constexpr std::size_t kBytes = 2 * kDigestChunk + 4321;
constexpr std::size_t kSteps = 200;

// The child, in a thread of its own; everything that it does is from the fuzzer.
class Child {
 public:
  Child(FuzzedDataProvider& input, const Truth& truth, Marks& marks, Peer& peer)
      : input_(input), truth_(truth), marks_(marks), peer_(peer) {}

  void run() {
    for (std::size_t step = 0; step < kSteps && input_.remaining_bytes() > 0; ++step) {
      act();
      read();
    }
    peer_.end_sending();
    while (read()) {  // the other side closes its socket when `serve` is over
      peer_.wait(100);
    }
  }

 private:
  void act() {
    switch (input_.ConsumeIntegralInRange(0, 9)) {
      case 0:
        honest_ = false;  // from here on, nobody can tell what was asked
        return peer_.send(some_bytes(input_));
      case 1:
        return raise();
      case 2:
        return peer_.wait(1);
      case 3:
        if (input_.ConsumeIntegralInRange(0, 20) == 0) {
          marks_.close();
        }
        return;
      default:
        return ask();
    }
  }

  void ask() {
    const auto length = input_.ConsumeIntegralInRange<std::uint32_t>(1, 40'000);
    const PullFrame pull{input_.ConsumeIntegralInRange<std::uint64_t>(0, kBytes - 1), length,
                         input_.ConsumeIntegralInRange<std::uint32_t>(0, 3)};
    honest_ = honest_ && pull.end() <= kBytes;
    auto bytes = encode(pull);
    if (input_.ConsumeIntegralInRange(0, 15) == 0) {
      change_byte(input_, bytes);
      honest_ = false;
    }
    if (honest_) {
      asked_.push_back(pull);
    }
    peer_.send(bytes);
  }

  void raise() {
    const std::size_t lane = input_.ConsumeIntegralInRange<std::size_t>(0, marks_.lanes() - 1);
    const Bounds bounds = marks_.bounds(lane);
    const std::uint64_t wanted = input_.ConsumeIntegralInRange<std::uint64_t>(bounds.start, bounds.end);
    try {
      marks_.set_received(lane, std::max(wanted, marks_.verified(lane)));
      marks_.set_verified(lane, std::max(wanted, marks_.verified(lane)));
    } catch (const MarksClosed&) {
    }
  }

  bool read() {
    const bool open = peer_.read(inbox_);
    while (inbox_.size() >= kHeaderBytes + kDataBytes) {
      const std::span<const std::byte> bytes(inbox_);
      require(parse_header(bytes.first<kHeaderBytes>()).kind == FrameKind::kData, "a reply of another kind");
      const DataFrame data = parse_data(bytes.subspan<kHeaderBytes, kDataBytes>());
      const auto all = kHeaderBytes + kDataBytes + data.length;
      if (inbox_.size() < all) {
        break;
      }
      check(data, bytes.subspan(kHeaderBytes + kDataBytes, data.length));
      inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(all));
    }
    return open;
  }

  // Marks only rise, so that what was verified when the reply left still is.
  void check(const DataFrame& data, std::span<const std::byte> bytes) {
    require(data.offset + data.length <= kBytes && data.watermark <= kBytes, "a reply beyond the arena");
    require(marks_.valid_end(data.offset) >= data.offset + data.length, "bytes that are not verified were sent");
    require(std::equal(bytes.begin(), bytes.end(), truth_.bytes.begin() + static_cast<std::ptrdiff_t>(data.offset)),
            "wrong bytes were sent");
    if (!asked_.empty()) {
      const PullFrame asked = asked_.front();
      asked_.pop_front();
      require(data.offset == asked.offset && (data.length == 0 || data.length == asked.length),
              "a reply that answers another request");
      require(!gone_back_ || asked.offset <= *gone_back_ || data.length == 0, "a later byte before an earlier one");
      if (!gone_back_ || asked.offset <= *gone_back_) {
        gone_back_ = data.length == 0 ? std::optional(asked.offset) : std::nullopt;
      }
    }
  }

  FuzzedDataProvider& input_;
  const Truth& truth_;
  Marks& marks_;
  Peer& peer_;
  std::vector<std::byte> inbox_;
  std::deque<PullFrame> asked_;  // valid requests without a reply, up to the first other bytes
  std::optional<std::uint64_t> gone_back_;
  bool honest_ = true;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Truth truth(kBytes);
  FuzzedDataProvider input(data, size);
  const auto marks = new_marks(kBytes, {{0, kDigestChunk}, {kDigestChunk, kBytes}});
  if (input.ConsumeBool()) {
    marks->fill();
  }
  std::vector<std::shared_ptr<EgressBucket>> buckets;
  if (input.ConsumeBool()) {
    buckets.push_back(std::make_shared<EgressBucket>(1 << 30));
  }
  constexpr auto kPatience = std::chrono::seconds(5);
  const ServeLimits limits{.idle = kPatience, .silence = kPatience, .reply = kPatience};
  Peer peer;
  auto stream = std::make_unique<Stream>(peer.connect(), "child");
  Child child(input, truth, *marks, peer);
  std::jthread thread([&] { child.run(); });
  Served served;
  try {
    serve(*stream, *marks, truth.bytes, served, buckets, limits);
  } catch (const StreamTorn&) {
  } catch (const StreamBroken&) {
  } catch (const MarksClosed&) {
  }
  stream.reset();
  return 0;
}
