// The puller against parents that a test plays by hand: liars, slow ones, silent ones.
#include "puller.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "errors.hpp"
#include "rig.hpp"

namespace flashboot {
namespace {

using rig::kLong;
using rig::kShort;
using rig::pattern;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint32_t kPiece = 64 << 10;  // of one request; fits a socket's buffer, so that a test can send first

struct PullerTest : ::testing::Test {
  LanePuller& puller(const PullSettings& settings) {
    made = std::make_unique<LanePuller>(link.child, Lane(arena.marks, 0, arena.memory, arena.digests), settings);
    return *made;
  }
  LanePuller& puller() { return puller(settings); }
  void say(std::span<const std::byte> head, std::span<const std::byte> tail = {}) {
    link.parent->send(head, tail, kLong, kLong, "a test");
  }
  void say(const DataFrame& data) { say(encode(data), std::span(good).subspan(data.offset, data.length)); }
  PullFrame hear() {
    std::array<std::byte, kHeaderBytes + kPullBytes> bytes;
    EXPECT_EQ(link.parent->recv_into(bytes, kLong, kLong, "a test"), bytes.size());
    return parse_pull(std::span<const std::byte>(bytes).subspan<kHeaderBytes, kPullBytes>());
  }
  // What the puller makes of these bytes.
  template <typename Error>
  void expect_refused(const DataFrame& data) {
    say(encode(data), std::span(good).first(data.length));
    EXPECT_THROW((void)puller().advance(kLong), Error);
    EXPECT_EQ(arena.marks->verified(0), 0);
  }

  PullSettings settings{
      .request_bytes = kPiece, .in_flight = 2, .poll = kShort, .silence = kLong, .overdue_floor = kLong};
  const std::vector<std::byte> good = pattern(4 * kMiB);
  rig::Arena arena{good};
  rig::Pair link;
  std::unique_ptr<LanePuller> made;
};

TEST_F(PullerTest, RequestsEndAtMultiplesOfTheirSizeFromTheLanesStart) {
  arena.marks->set_received(0, 100);
  settings.in_flight = 3;
  settings.request_bytes = 3 << 19;
  EXPECT_EQ(puller().advance(Duration::zero()).state, State::kGoing);
  const PullFrame first = hear();
  EXPECT_EQ(first.offset, 100);
  EXPECT_EQ(first.end(), 3 << 19);
  EXPECT_EQ(first.wait_ms, 30);
  EXPECT_EQ(hear().end(), 3 << 20);
  EXPECT_EQ(hear().end(), 4 * kMiB) << "the lane's end";
}

TEST_F(PullerTest, AReplyThatAnswersAnotherRequestIsTorn) { expect_refused<StreamTorn>({kPiece, 4 * kMiB, kPiece}); }
TEST_F(PullerTest, AReplyOfAnotherLengthIsTorn) { expect_refused<StreamTorn>({0, 4 * kMiB, kPiece - 1}); }
TEST_F(PullerTest, AWatermarkBeyondTheArenaIsTorn) { expect_refused<StreamTorn>({0, 4 * kMiB + 1, kPiece}); }
TEST_F(PullerTest, BytesBeyondTheWatermarkAreTorn) { expect_refused<StreamTorn>({0, kPiece - 1, kPiece}); }

TEST_F(PullerTest, BytesAfterAnEmptyReplyAreTorn) {
  say(DataFrame{0, 0, 0});
  say(DataFrame{kPiece, 2 * kPiece, kPiece});
  EXPECT_THROW((void)puller().advance(kLong), StreamTorn);
}

TEST_F(PullerTest, ARequestInAnswerIsTorn) {
  say(encode(PullFrame{0, 1, 0}));
  EXPECT_THROW((void)puller().advance(kLong), StreamTorn);
}

TEST_F(PullerTest, AnEndIsBrokenWhereverItComes) {
  const auto head = encode(DataFrame{0, kPiece, kPiece});
  for (const std::size_t cut : {std::size_t{0}, std::size_t{5}, head.size() - 1, head.size(), head.size() + 10}) {
    rig::Arena fresh{good};
    rig::Pair pair;
    pair.parent->send(std::span(head).first(std::min(cut, head.size())),
                      std::span(good).first(cut - std::min(cut, head.size())), kLong, kLong, "a test");
    pair.parent->finish(Duration::zero());
    LanePuller lane(pair.child, Lane(fresh.marks, 0, fresh.memory, fresh.digests), settings);
    EXPECT_THROW((void)lane.advance(kLong), StreamBroken) << cut;
  }
}

TEST_F(PullerTest, TroubleIsHandedOverAndStays) {
  const std::string body = R"({"reason":"UnknownArena","message":"gone"})";
  auto head = encode(DataFrame{});
  head[5] = std::byte{5};
  head[8] = static_cast<std::byte>(body.size());
  say(std::span(head).first(kHeaderBytes), std::as_bytes(std::span(body)));
  for (int i = 0; i < 2; ++i) {
    const Advance result = (i == 0 ? puller() : *made).advance(kLong);
    EXPECT_EQ(result.state, State::kTrouble);
    EXPECT_EQ(result.trouble, body);
  }
}

TEST_F(PullerTest, AParentThatHasTheBytesAndDoesNotSendThemIsOverdue) {
  settings.overdue_floor = kShort;
  say(DataFrame{0, 3 * kPiece, kPiece});
  const Advance result = puller().advance(kLong);
  EXPECT_EQ(result.state, State::kOverdue);
  EXPECT_EQ(result.offset, kPiece);
  EXPECT_EQ(result.parent_end, 3 * kPiece);
  say(DataFrame{kPiece, 3 * kPiece, kPiece});
  const Advance later = made->advance(kLong);
  EXPECT_EQ(later.state, State::kOverdue) << "the third";
  EXPECT_EQ(later.offset, 2 * kPiece) << "the second was taken all the same";
}

TEST_F(PullerTest, AParentThatStopsInsideAReplyIsOverdue) {
  settings.overdue_floor = kShort;
  say(encode(DataFrame{0, kPiece, kPiece}), std::span(good).first(1000));
  const Advance result = puller().advance(kLong);
  EXPECT_EQ(result.state, State::kOverdue);
  EXPECT_EQ(result.offset, 1000);
}

TEST_F(PullerTest, AnEmptyReplyForBytesThatItHasIsOverdue) {
  say(DataFrame{0, kPiece, 0});
  EXPECT_EQ(puller().advance(kLong).state, State::kOverdue);
}

TEST_F(PullerTest, AParentWithoutBytesIsStarvedAndNeverOverdue) {
  settings.overdue_floor = Duration::zero();
  LanePuller& lane = puller();
  for (int round = 0; round < 3; ++round) {
    say(DataFrame{0, 0, 0});
    say(DataFrame{kPiece, kPiece, 0});
    const Advance result = lane.advance(kShort);
    EXPECT_EQ(result.state, State::kGoing);
    EXPECT_TRUE(result.starved);
    EXPECT_EQ(result.parent_end, 0);
    EXPECT_EQ(hear().offset, 0);
    EXPECT_EQ(hear().offset, kPiece);
  }
}

TEST_F(PullerTest, ASilentParentIsGivenUpAfterItsLongPoll) {
  settings.silence = kShort;
  const Time began = Clock::now();
  EXPECT_THROW((void)puller().advance(kLong), StreamTimeout);
  EXPECT_GE(Clock::now() - began, settings.poll + settings.silence);
}

TEST_F(PullerTest, ClosingTheStreamOrTheArenaEndsAWait) {
  LanePuller& lane = puller();
  rig::Task waiting([&] { (void)lane.advance(kLong); });
  (void)hear();  // it waits now, or soon
  link.child->close();
  EXPECT_THROW(waiting.result(), StreamBroken);

  rig::Pair other;
  link.child = other.child;
  LanePuller& again = puller();
  rig::Task also([&] { (void)again.advance(kLong); });
  arena.marks->close();
  EXPECT_THROW(also.result(), MarksClosed);
}

TEST_F(PullerTest, SettingsOutsideTheirLimitsAreRefused) {
  const auto refused = [&](auto change) {
    PullSettings wrong = settings;
    change(wrong);
    EXPECT_THROW((void)puller(wrong), std::invalid_argument);
  };
  refused([](PullSettings& s) { s.request_bytes = 0; });
  refused([](PullSettings& s) { s.request_bytes = kMaxPull + 1; });
  refused([](PullSettings& s) { s.in_flight = 1; });
  refused([](PullSettings& s) { s.in_flight = 65; });
  refused([](PullSettings& s) { s.poll = std::chrono::seconds(61); });
  refused([](PullSettings& s) { s.silence = Duration::zero(); });
}

TEST_F(PullerTest, AMemoryOrTableOfAnotherSizeIsRefused) {
  const auto lane = [&](std::span<std::byte> memory, Bytes digests, std::size_t number) {
    return Lane(arena.marks, number, memory, digests);
  };
  EXPECT_THROW(lane(std::span(arena.memory).first(kMiB), arena.digests, 0), std::invalid_argument);
  EXPECT_THROW(lane(arena.memory, Bytes(arena.digests).first(8), 0), std::invalid_argument);
  EXPECT_THROW(lane(arena.memory, arena.digests, 1), std::out_of_range);
  arena.marks->set_verified(0, 5000);
  EXPECT_THROW(lane(arena.memory, arena.digests, 0), std::invalid_argument) << "inside a digest chunk";
}

TEST_F(PullerTest, DamagedRepliesNeverPutAWrongByteAboveTheMarks) {
  std::vector<std::byte> right;
  for (std::uint64_t at = 0; at < good.size(); at += kMiB / 4) {
    const auto head = encode(DataFrame{at, good.size(), kMiB / 4});
    right.insert(right.end(), head.begin(), head.end());
    right.insert(right.end(), good.begin() + static_cast<std::ptrdiff_t>(at),
                 good.begin() + static_cast<std::ptrdiff_t>(at + kMiB / 4));
  }
  settings.request_bytes = kMiB / 4;
  settings.silence = kShort;
  settings.poll = Duration::zero();
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::byte> wrong = right;
    for (int i = 0; i < 3; ++i) {  // every other round in a header, where it hurts
      const std::size_t period = kMiB / 4 + kHeaderBytes + kDataBytes;
      const std::size_t at = round % 2 == 0 ? random() % wrong.size() : random() % 16 * period + random() % 32;
      wrong[at] = static_cast<std::byte>(random());
    }
    rig::Arena fresh{good};
    std::fill(fresh.memory.begin(), fresh.memory.end(), std::byte{0});
    rig::Pair pair;
    rig::Task liar([&] {
      try {
        pair.parent->send(wrong, {}, kLong, kLong, "a test");
      } catch (const StreamBroken&) {  // the child had enough
      }
    });
    LanePuller lane(pair.child, Lane(fresh.marks, 0, fresh.memory, fresh.digests), settings);
    try {
      while (lane.advance(kLong).state == State::kDiffers) {
      }
    } catch (const std::runtime_error&) {  // torn, broken or silent
    }
    pair.child->close();
    const auto marked = static_cast<std::ptrdiff_t>(fresh.marks->verified(0));
    ASSERT_TRUE(std::equal(good.begin(), good.begin() + marked, fresh.memory.begin())) << "round " << round;
  }
}

}  // namespace
}  // namespace flashboot
