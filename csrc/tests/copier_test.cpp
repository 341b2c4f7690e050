// The copier: the parent's bytes, never above its marks, in order whatever the number of threads.
#include "copier.hpp"

#include <gtest/gtest.h>

#include <atomic>

#include "errors.hpp"
#include "rig.hpp"

namespace flashboot {
namespace {

using rig::kLong;
using rig::kShort;
using rig::pattern;

constexpr std::uint64_t kMiB = 1 << 20;

struct CopierTest : ::testing::TestWithParam<std::size_t> {
  void SetUp() override { std::fill(child.memory.begin(), child.memory.end(), std::byte{0}); }
  [[nodiscard]] LaneCopier copier(std::size_t lane) {
    return {parent.marks, parent.memory, Lane(child.marks, lane, child.memory, child.digests), GetParam()};
  }

  const std::vector<std::byte> good = pattern(9 * kMiB + 4321);
  rig::Arena parent{good};
  rig::Arena child{good, {{0, 5 * kMiB}, {5 * kMiB, good.size()}}};
};

INSTANTIATE_TEST_SUITE_P(Threads, CopierTest, ::testing::Values(1, 2, 5));

TEST_P(CopierTest, CopiesItsLaneAndNothingElse) {
  parent.marks->fill();
  auto lane1 = copier(1);
  const Advance result = lane1.advance(kLong);
  EXPECT_EQ(result.state, State::kDone);
  EXPECT_EQ(result.bytes_in, good.size() - 5 * kMiB);
  EXPECT_EQ(result.parent_end, good.size());
  EXPECT_EQ(child.memory[5 * kMiB - 1], std::byte{0});
  EXPECT_EQ(copier(0).advance(kLong).state, State::kDone);
  EXPECT_EQ(child.memory, good);
  EXPECT_EQ(child.marks->total_verified(), good.size());
  EXPECT_EQ(child.marks->counter(Counter::kBytesIn), good.size());
}

TEST_P(CopierTest, FollowsItsParent) {
  auto lane0 = copier(0);
  const Advance nothing = lane0.advance(kShort);
  EXPECT_EQ(nothing.state, State::kGoing);
  EXPECT_TRUE(nothing.starved);
  EXPECT_EQ(nothing.parent_end, 0);
  rig::Task fill([&] {
    for (std::uint64_t at = 0; at < good.size();) {
      at = std::min<std::uint64_t>(at + 777'777, good.size());
      parent.marks->set_verified(0, at);
    }
  });
  const Advance result = lane0.advance(kLong);
  EXPECT_EQ(result.state, State::kDone);
  EXPECT_FALSE(result.starved);
  fill.result();
  EXPECT_TRUE(std::equal(good.begin(), good.begin() + 5 * kMiB, child.memory.begin()));
}

TEST_P(CopierTest, BytesAboveTheParentsMarksAreNotRead) {
  parent.marks->set_verified(0, 2 * kMiB + 5);
  auto lane0 = copier(0);
  EXPECT_EQ(lane0.advance(kShort).state, State::kGoing);
  EXPECT_EQ(child.marks->verified(0), 2 * kMiB) << "whole chunks only";
  EXPECT_EQ(child.memory[2 * kMiB], std::byte{0});
}

TEST_P(CopierTest, EveryCallGetsOnEvenWithoutTime) {
  parent.marks->fill();
  auto lane0 = copier(0);
  for (int calls = 1; lane0.advance(Duration::zero()).state == State::kGoing; ++calls) {
    ASSERT_LE(calls, 5) << "a chunk at a call at least";
  }
  EXPECT_EQ(child.marks->verified(0), 5 * kMiB);
}

TEST_P(CopierTest, AWrongChunkIsNeverMarkedAndIsCopiedAgain) {
  parent.marks->fill();
  parent.memory[3 * kMiB] ^= std::byte{1};
  auto lane0 = copier(0);
  const Advance result = lane0.advance(kLong);
  EXPECT_EQ(result.state, State::kDiffers);
  EXPECT_EQ(result.offset, 3 * kMiB);
  EXPECT_EQ(child.marks->verified(0), 3 * kMiB);
  EXPECT_EQ(child.marks->received(0), 3 * kMiB);
  EXPECT_EQ(child.marks->counter(Counter::kRefetched), 1);
  parent.memory[3 * kMiB] ^= std::byte{1};
  EXPECT_EQ(lane0.advance(kLong).state, State::kDone);
  EXPECT_TRUE(std::equal(good.begin(), good.begin() + 5 * kMiB, child.memory.begin()));
}

TEST_P(CopierTest, GoesOnAtTheVeryByteOfAnotherWay) {
  parent.marks->fill();
  constexpr std::uint64_t kStop = kMiB + 777;
  std::copy(good.begin(), good.begin() + kStop, child.memory.begin());
  child.marks->set_received(0, kStop);
  const Advance result = copier(0).advance(kLong);
  EXPECT_EQ(result.state, State::kDone);
  EXPECT_EQ(result.bytes_in, 5 * kMiB - kStop);
  EXPECT_TRUE(std::equal(good.begin(), good.begin() + 5 * kMiB, child.memory.begin()));
}

TEST_P(CopierTest, EndsWhenEitherArenaGoes) {
  auto lane0 = copier(0);
  rig::Task waiting([&] { (void)lane0.advance(kLong); });
  parent.marks->close();
  try {
    waiting.result();
    ADD_FAILURE() << "it went on";
  } catch (const MarksClosed& error) {
    EXPECT_STREQ(error.what(), "the parent's arena was closed");
  }
  rig::Arena other{good};
  other.marks->fill();
  child.marks->close();
  LaneCopier closed(other.marks, other.memory, Lane(child.marks, 0, child.memory, child.digests), GetParam());
  EXPECT_THROW((void)closed.advance(kLong), MarksClosed);
}

TEST_P(CopierTest, SizesMustAgree) {
  const rig::Arena small{pattern(kMiB)};
  const auto lane = [&] { return Lane(child.marks, 0, child.memory, child.digests); };
  EXPECT_THROW(LaneCopier(small.marks, parent.memory, lane(), 1), std::invalid_argument);
  EXPECT_THROW(LaneCopier(parent.marks, small.memory, lane(), 1), std::invalid_argument);
  EXPECT_THROW(LaneCopier(parent.marks, parent.memory, lane(), 0), std::invalid_argument);
}

}  // namespace
}  // namespace flashboot
