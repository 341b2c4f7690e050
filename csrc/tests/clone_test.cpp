// Puller and server against each other, plain and under TLS: the bytes are the parent's, each arrives once, and wrong ones
// are never marked.
#include <gtest/gtest.h>

#include "errors.hpp"
#include "puller.hpp"
#include "rig.hpp"
#include "server.hpp"

namespace flashboot {
namespace {

using rig::kLong;
using rig::kShort;
using rig::pattern;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr ServeLimits kPatient{.idle = kLong, .silence = kLong, .reply = kLong};
const PullSettings kPull{
    .request_bytes = kMiB, .in_flight = 2, .poll = kShort, .silence = kLong, .overdue_floor = kLong};

struct CloneTest : ::testing::TestWithParam<bool> {
  // A connection, with somebody who serves it; ends when this object goes.
  struct Link {
    Link(CloneTest& test, rig::Arena& arena, ServeLimits limits = kPatient,
         std::vector<std::shared_ptr<EgressBucket>> caps = {std::make_shared<EgressBucket>(0)})
        : buckets(std::move(caps)), server([this, &arena, limits, context = test.GetParam() ? test.server_context : nullptr] {
            if (context) {
              pair.parent->start_tls(context, std::nullopt, kLong);
            }
            serve(*pair.parent, *arena.marks, arena.memory, served, buckets, limits);
          }) {
      if (test.GetParam()) {
        pair.child->start_tls(test.client_context, std::nullopt, kLong);
      }
    }
    ~Link() { pair.child->close(); }

    rig::Pair pair;
    Served served;
    std::vector<std::shared_ptr<EgressBucket>> buckets;
    rig::Task server;
  };

  [[nodiscard]] LanePuller puller(Link& link, const PullSettings& settings = kPull, std::size_t lane = 0) {
    return {link.pair.child, Lane(child.marks, lane, child.memory, child.digests), settings};
  }
  // The child has the parent's bytes, and the digests that it will compare with are right.
  void expect_complete() {
    EXPECT_EQ(child.memory, good);
    EXPECT_EQ(child.marks->total_verified(), good.size());
  }
  // Advances until a call comes to something else than going on.
  static Advance finish(LanePuller& puller) {
    Advance result = puller.advance(kLong);
    EXPECT_NE(result.state, State::kGoing);
    return result;
  }

  rig::Authority authority;
  std::shared_ptr<TlsContext> server_context = authority.context("flashboot://agent/a", true);
  std::shared_ptr<TlsContext> client_context = authority.context("flashboot://agent/b", false);
  const std::vector<std::byte> good = pattern(5 * kMiB + 12345);
  const std::vector<Bounds> lanes{{0, 2 * kMiB}, {2 * kMiB, good.size()}};
  rig::Arena parent{good, {{0, 3 * kMiB}, {3 * kMiB, good.size()}}};  // other lanes than the child's
  rig::Arena child{good, lanes};

 private:
  // As the child is before the first byte: no bytes, but the right digests.
  void SetUp() override { std::fill(child.memory.begin(), child.memory.end(), std::byte{0}); }
};

INSTANTIATE_TEST_SUITE_P(PlainAndTls, CloneTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

TEST_P(CloneTest, LanesOfAnySizeOfRequestGiveTheParentsBytes) {
  parent.marks->fill();
  Link first(*this, parent);
  Link second(*this, parent);
  PullSettings odd = kPull;
  odd.request_bytes = 100'003;
  odd.in_flight = 7;
  auto lane0 = puller(first, odd, 0);
  PullSettings large = kPull;
  large.request_bytes = kMaxPull;
  auto lane1 = puller(second, large, 1);
  EXPECT_EQ(finish(lane1).state, State::kDone);
  EXPECT_EQ(child.marks->verified(0), 0);
  const Advance result = finish(lane0);
  EXPECT_EQ(result.state, State::kDone);
  EXPECT_EQ(result.parent_end, good.size()) << "the parent's run goes through its lanes";
  EXPECT_EQ(result.bytes_in, 2 * kMiB);
  EXPECT_EQ(first.served.bytes_out(), 2 * kMiB);
  EXPECT_EQ(child.marks->counter(Counter::kBytesIn), good.size());
  EXPECT_EQ(parent.marks->counter(Counter::kBytesOut), good.size());
  EXPECT_EQ(finish(lane0).state, State::kDone) << "and stays done";
  expect_complete();
}

TEST_P(CloneTest, ThePlaceIsKeptBetweenCallsThatHaveNoTime) {
  parent.marks->fill();
  Link link(*this, parent);
  PullSettings odd = kPull;
  odd.request_bytes = 70'001;
  auto lane0 = puller(link, odd, 0);
  int calls = 0;
  while (lane0.advance(Duration::zero()).state == State::kGoing) {
    ++calls;
  }
  EXPECT_GT(calls, 30);
  EXPECT_EQ(child.marks->verified(0), 2 * kMiB);
  EXPECT_TRUE(std::equal(good.begin(), good.begin() + 2 * kMiB, child.memory.begin()));
}

TEST_P(CloneTest, AnotherParentGoesOnAtTheVeryByte) {
  parent.marks->fill();
  const std::vector<std::uint64_t> stops{1, 4095, 4096, kMiB - 1, kMiB, kMiB + 1, 2 * kMiB - 1};
  for (const std::uint64_t stop : stops) {
    rig::Arena again{good, lanes};
    std::fill(again.memory.begin() + static_cast<std::ptrdiff_t>(stop), again.memory.end(), std::byte{0});
    again.marks->set_received(0, stop);  // as a process leaves it that is killed there
    Link link(*this, parent);
    LanePuller lane0(link.pair.child, Lane(again.marks, 0, again.memory, again.digests), kPull);
    const Advance result = finish(lane0);
    EXPECT_EQ(result.state, State::kDone) << stop;
    EXPECT_EQ(result.bytes_in, 2 * kMiB - stop);
    EXPECT_TRUE(std::equal(good.begin(), good.begin() + 2 * kMiB, again.memory.begin())) << stop;
  }
}

TEST_P(CloneTest, AChangeOfParentsInTheMiddleReceivesNoByteTwice) {
  parent.marks->fill();
  PullSettings small = kPull;
  small.request_bytes = 9999;
  std::uint64_t bytes = 0;
  int parents = 0;
  for (State state = State::kGoing; state == State::kGoing; ++parents) {
    Link link(*this, parent);
    auto lane1 = puller(link, small, 1);
    std::uint64_t fresh = 0;  // a slow machine gives each parent the time to send something
    for (int i = 0; (i < 200 || fresh == 0) && state == State::kGoing; ++i) {
      const Advance result = lane1.advance(Duration::zero());
      state = result.state;
      fresh += result.bytes_in;
    }
    bytes += fresh;
    ASSERT_TRUE(state == State::kGoing || state == State::kDone);
  }
  EXPECT_GT(parents, 2);
  EXPECT_EQ(bytes, good.size() - 2 * kMiB);
  EXPECT_TRUE(std::equal(good.begin() + 2 * kMiB, good.end(), child.memory.begin() + 2 * kMiB));
}

TEST_P(CloneTest, BytesThatAreThereAlreadyAreCheckedAndNotTrusted) {
  parent.marks->fill();
  child.marks->set_received(0, kMiB + 5);  // but they are zeros
  Link link(*this, parent);
  auto lane0 = puller(link);
  const Advance wrong = finish(lane0);
  EXPECT_EQ(wrong.state, State::kDiffers);
  EXPECT_EQ(wrong.offset, 0);
  EXPECT_EQ(finish(lane0).state, State::kDone);
}

TEST_P(CloneTest, AWrongChunkIsNeverMarkedAndIsFetchedAgain) {
  parent.marks->fill();
  for (const std::uint32_t request : {std::uint32_t{30'000}, std::uint32_t{kMiB}, kMaxPull}) {
    rig::Arena again{good, {{0, good.size()}}};
    std::fill(again.memory.begin(), again.memory.end(), std::byte{0});
    const std::size_t bad = 3 * kMiB + 77;
    parent.memory[bad] ^= std::byte{1};
    PullSettings settings = kPull;
    settings.request_bytes = request;
    settings.in_flight = 5;
    Link link(*this, parent);
    LanePuller all(link.pair.child, Lane(again.marks, 0, again.memory, again.digests), settings);
    for (int tries = 1; tries <= 2; ++tries) {
      const Advance result = finish(all);
      EXPECT_EQ(result.state, State::kDiffers);
      EXPECT_EQ(result.offset, 3 * kMiB);
      EXPECT_EQ(again.marks->verified(0), 3 * kMiB);
      EXPECT_EQ(again.marks->received(0), 3 * kMiB);
    }
    parent.memory[bad] ^= std::byte{1};
    // What is in flight now may hold the wrong byte still.
    Advance result = finish(all);
    result = result.state == State::kDiffers ? finish(all) : result;
    EXPECT_EQ(result.state, State::kDone) << request;
    EXPECT_GE(again.marks->counter(Counter::kRefetched), 2);
    EXPECT_EQ(again.memory, good);
  }
}

TEST_P(CloneTest, AChildWaitsForItsParentsBytesInOrder) {
  Link link(*this, parent);
  PullSettings many = kPull;
  many.in_flight = 8;
  many.request_bytes = kMiB / 4;
  auto lane0 = puller(link, many, 0);
  Advance result = lane0.advance(Duration::zero());
  while (!result.starved) {
    result = lane0.advance(kShort);
    ASSERT_EQ(result.state, State::kGoing);
  }
  EXPECT_EQ(result.parent_end, 0) << "it has nothing";
  rig::Task fill([&] {
    for (std::uint64_t at = 0; at < good.size();) {
      at = std::min<std::uint64_t>(at + 10'007, good.size());
      for (std::size_t lane = 0; lane < 2; ++lane) {
        const Bounds bounds = parent.marks->bounds(lane);
        parent.marks->set_verified(lane, std::clamp(at, bounds.start, bounds.end));
      }
    }
  });
  EXPECT_EQ(finish(lane0).state, State::kDone);
  EXPECT_FALSE(lane0.advance(kLong).starved);
  fill.result();
  EXPECT_EQ(link.served.bytes_out(), 2 * kMiB);
  EXPECT_TRUE(std::equal(good.begin(), good.begin() + 2 * kMiB, child.memory.begin()));
}

TEST_P(CloneTest, AWrongChunkShortlyBeforeTheEndOfTheParentsBytesIsAskedAgain) {
  rig::Arena all{good};
  std::fill(all.memory.begin(), all.memory.end(), std::byte{0});
  parent.marks->set_verified(0, 3 * kMiB);
  parent.memory[kMiB] ^= std::byte{1};
  Link link(*this, parent);
  PullSettings many = kPull;
  many.in_flight = 4;  // to byte 4 MiB: the last is answered empty, beyond the chunk that has to be asked for again
  LanePuller lane(link.pair.child, Lane(all.marks, 0, all.memory, all.digests), many);
  EXPECT_EQ(finish(lane).state, State::kDiffers);
  parent.memory[kMiB] ^= std::byte{1};
  while (all.marks->verified(0) < 3 * kMiB) {
    ASSERT_EQ(lane.advance(kShort).state, State::kGoing);
  }
  parent.marks->fill();
  EXPECT_EQ(finish(lane).state, State::kDone);
  EXPECT_EQ(all.memory, good);
}

TEST_P(CloneTest, ACapHoldsForAllChildrenTogether) {
  constexpr std::uint64_t kRate = 50'000'000;
  parent.marks->fill();
  const auto bucket = std::make_shared<EgressBucket>(kRate);
  const Time began = Clock::now();
  {
    Link first(*this, parent, kPatient, {bucket});
    Link second(*this, parent, kPatient, {std::make_shared<EgressBucket>(0), bucket});
    rig::Task other([&] {
      auto lane1 = puller(second, kPull, 1);
      EXPECT_EQ(finish(lane1).state, State::kDone);
    });
    auto lane0 = puller(first, kPull, 0);
    EXPECT_EQ(finish(lane0).state, State::kDone);
    other.result();
  }
  expect_complete();
  const double free = 2 * 256e3 + 0.02 * kRate;  // what was saved up, and slices that are paid after
  EXPECT_GE(to_seconds(Clock::now() - began), (static_cast<double>(good.size()) - free) / kRate);
}

}  // namespace
}  // namespace flashboot
