// The server against children that a test plays by hand.
#include "server.hpp"

#include <gtest/gtest.h>

#include <random>

#include "errors.hpp"
#include "frames.hpp"
#include "rig.hpp"

namespace flashboot {
namespace {

using rig::kLong;
using rig::kShort;
using rig::pattern;

constexpr std::uint64_t kMiB = 1 << 20;

struct ServerTest : ::testing::Test {
  void start(const ServeLimits& limits) {
    server = std::make_unique<rig::Task>(
        [this, limits] { serve(*link.parent, *arena.marks, arena.memory, served, {}, limits); });
  }
  void start() { start({.idle = kLong, .silence = kLong, .reply = kLong}); }
  void ask(const PullFrame& pull) { link.child->send(encode(pull), {}, kLong, kLong, "a test"); }
  DataFrame hear() {
    std::array<std::byte, kHeaderBytes + kDataBytes> bytes;
    EXPECT_EQ(link.child->recv_into(bytes, kLong, kLong, "a test"), bytes.size());
    const DataFrame data = parse_data(std::span<const std::byte>(bytes).subspan<kHeaderBytes, kDataBytes>());
    tail.resize(data.length);
    EXPECT_EQ(link.child->recv_into(tail, kLong, kLong, "a test"), tail.size());
    return data;
  }
  template <typename Error>
  void expect_torn_off(std::span<const std::byte> bytes) {
    rig::Pair pair;
    rig::Task task([&] { serve(*pair.parent, *arena.marks, arena.memory, served, {}, {kLong, kLong, kLong}); });
    pair.child->send(bytes, {}, kLong, kLong, "a test");
    pair.child->finish(Duration::zero());
    EXPECT_THROW(task.result(), Error);
  }

  const std::vector<std::byte> good = pattern(4 * kMiB);
  rig::Arena arena{good, {{0, 2 * kMiB}, {2 * kMiB, 4 * kMiB}}};
  rig::Pair link;
  Served served;
  std::vector<std::byte> tail;
  std::unique_ptr<rig::Task> server;
};

TEST_F(ServerTest, AnswersWithTheBytesAndTheEndOfTheRun) {
  arena.marks->set_verified(0, 1000);
  arena.marks->set_verified(1, 3 * kMiB);
  start();
  ask({10, 900, 0});
  ask({2 * kMiB, kMiB, 0});
  const DataFrame first = hear();
  EXPECT_EQ(first.offset, 10);
  EXPECT_EQ(first.watermark, 1000);
  EXPECT_EQ(first.length, 900);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), good.begin() + 10));
  EXPECT_EQ(hear().watermark, 3 * kMiB);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), good.begin() + 2 * kMiB));
  link.child->finish(Duration::zero());
  EXPECT_NO_THROW(server->result());
  EXPECT_EQ(served.bytes_out(), 900 + kMiB);
  EXPECT_EQ(arena.marks->counter(Counter::kBytesOut), 900 + kMiB);
}

TEST_F(ServerTest, GoesBackAfterAnEmptyReply) {
  arena.marks->set_verified(0, 1000);
  arena.marks->set_verified(1, 3 * kMiB);
  start();
  ask({900, 200, 1});
  EXPECT_EQ(hear().length, 0);
  ask({2 * kMiB, 1, 0});  // there, but behind bytes that the child lacks
  const DataFrame behind = hear();
  EXPECT_EQ(behind.length, 0);
  EXPECT_EQ(behind.watermark, 3 * kMiB);
  ask({900, 100, 0});  // at its place: all is normal again
  EXPECT_EQ(hear().length, 100);
  ask({2 * kMiB, 1, 0});
  EXPECT_EQ(hear().length, 1);
  ask({1000, 1, 0});
  EXPECT_EQ(hear().length, 0);
  ask({500, 1, 0});  // before its place: a chunk was wrong
  EXPECT_EQ(hear().length, 1);
  ask({2 * kMiB, 1, 0});
  EXPECT_EQ(hear().length, 1);
  link.child->finish(Duration::zero());
  EXPECT_NO_THROW(server->result());
}

TEST_F(ServerTest, WaitsForBytesAsLongAsItWasAsked) {
  start();
  ask({0, 1000, kMaxWaitMs});
  ask({1000, 1000, 10});
  arena.marks->set_verified(0, 999);
  arena.marks->set_verified(0, 1000);
  EXPECT_EQ(hear().length, 1000);
  EXPECT_EQ(hear().length, 0);
  link.child->finish(Duration::zero());
  EXPECT_NO_THROW(server->result());
}

TEST_F(ServerTest, AChildThatLeavesWhileItWaitsIsNoticed) {
  start();
  ask({0, 1000, kMaxWaitMs});
  link.child->close();
  EXPECT_THROW(server->result(), StreamBroken);
}

TEST_F(ServerTest, ClosingTheArenaEndsAWaitForBytesAndForRequests) {
  start();
  ask({0, 1000, kMaxWaitMs});
  rig::Pair pair;
  rig::Task idle([&] { serve(*pair.parent, *arena.marks, arena.memory, served, {}, {kLong, kLong, kLong}); });
  arena.marks->close();
  EXPECT_THROW(server->result(), MarksClosed);
  EXPECT_THROW(idle.result(), MarksClosed);
}

TEST_F(ServerTest, ClosingTheStreamEndsItWhereverItIs) {
  start();
  ask({0, 1000, kMaxWaitMs});
  link.parent->close();
  EXPECT_THROW(server->result(), StreamBroken);
}

TEST_F(ServerTest, SilentChildrenAreGivenUp) {
  start({.idle = kShort, .silence = kLong, .reply = kLong});
  EXPECT_THROW(server->result(), StreamTimeout);
  start({.idle = kLong, .silence = kShort, .reply = kLong});
  link.child->send(std::span(good).first(5), {}, kLong, kLong, "a test");
  EXPECT_THROW(server->result(), StreamTimeout) << "inside a request";
}

TEST_F(ServerTest, AChildThatTakesNoBytesIsGivenUp) {
  arena.marks->fill();
  for (const ServeLimits& limits :
       {ServeLimits{kLong, kShort, kLong}, ServeLimits{kLong, kLong, kShort}}) {
    rig::Pair pair;
    pair.child->send(encode(PullFrame{0, kMaxPull, 0}), {}, kLong, kLong, "a test");
    EXPECT_THROW(serve(*pair.parent, *arena.marks, arena.memory, served, {}, limits), StreamTimeout);
  }
}

TEST_F(ServerTest, AnythingButAPullInsideTheArenaIsTorn) {
  arena.marks->fill();
  const auto pull = [](std::uint64_t offset, std::uint32_t length) { return encode(PullFrame{offset, length, 0}); };
  expect_torn_off<StreamTorn>(pull(4 * kMiB, 1));
  expect_torn_off<StreamTorn>(pull(4 * kMiB - 1, 2));
  expect_torn_off<StreamTorn>(pull(0, 0));
  expect_torn_off<StreamTorn>(pull(0, kMaxPull + 1));
  expect_torn_off<StreamTorn>(pull(~std::uint64_t{0}, 1));
  expect_torn_off<StreamTorn>(encode(DataFrame{0, 0, 0}));
  expect_torn_off<StreamTorn>(std::span(good).first(100));
  const auto half = pull(0, 1);
  expect_torn_off<StreamBroken>(std::span(half).first(20));
}

TEST_F(ServerTest, NoBytesWhateverBreakAnythingButTheStream) {
  arena.marks->fill();
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> bytes;
    for (int i = 0; i < 3; ++i) {
      const auto frame = encode(PullFrame{random() % (4 * kMiB), static_cast<std::uint32_t>(random() % 1000), 0});
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    rig::Pair pair;
    pair.child->send(bytes, {}, kLong, kLong, "a test");
    rig::Task child([&] { pair.child->finish(kLong); });
    try {
      serve(*pair.parent, *arena.marks, arena.memory, served, {}, {kLong, kLong, kLong});
    } catch (const std::runtime_error&) {  // torn or broken
    }
    pair.parent->close();
  }
}

TEST_F(ServerTest, AMemoryOfAnotherSizeIsRefused) {
  EXPECT_THROW(serve(*link.parent, *arena.marks, std::span(arena.memory).first(10), served, {}, {kLong, kLong, kLong}),
               std::invalid_argument);
}

}  // namespace
}  // namespace flashboot
