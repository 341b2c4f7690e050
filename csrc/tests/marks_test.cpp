// The marks: what they refuse, what outlives the object, and that no waiter sleeps through news.
#include "marks.hpp"

#include <gtest/gtest.h>

#include <array>

#include "errors.hpp"
#include "rig.hpp"

namespace flashboot {
namespace {

using rig::kLong;

std::uint64_t word(int fd, std::size_t index) {
  std::uint64_t value = 0;
  EXPECT_EQ(pread(fd, &value, sizeof value, static_cast<off_t>(64 + 8 * index)), 8);
  return value;
}

void set_word(int fd, std::size_t index, std::uint64_t value) {
  ASSERT_EQ(pwrite(fd, &value, sizeof value, static_cast<off_t>(64 + 8 * index)), 8);
}

TEST(Marks, OutliveTheObject) {
  const rig::Record record;
  const std::vector<Bounds> lanes{{0, 100}, {100, 250}, {250, 300}};
  {
    Marks marks(record.fd(), 300, lanes);
    marks.set_received(0, 70);
    marks.set_verified(0, 60);
    marks.set_verified(2, 290);
    marks.add(Counter::kBytesOut, 5);
    EXPECT_EQ(marks.add(Counter::kBytesOut, 6), 11);
  }
  EXPECT_EQ(word(record.fd(), 0), 60);
  EXPECT_EQ(word(record.fd(), 1), 70);
  EXPECT_EQ(word(record.fd(), 3), 11);
  EXPECT_EQ(word(record.fd(), 8), 0) << "lane 1 was never marked";
  EXPECT_EQ(word(record.fd(), 10), 290);
  EXPECT_EQ(word(record.fd(), 11), 290) << "received is never below verified";
  const Marks again(record.fd(), 300, lanes);
  EXPECT_EQ(again.verified(0), 60);
  EXPECT_EQ(again.received(0), 70);
  EXPECT_EQ(again.verified(1), 100) << "a word of 0 is the lane's start";
  EXPECT_EQ(again.total_verified(), 60 + 0 + 40);
  EXPECT_EQ(again.counter(Counter::kBytesOut), 11);
}

TEST(Marks, RefuseWordsOutsideTheirLane) {
  const rig::Record record;
  const std::vector<Bounds> lanes{{0, 100}, {100, 200}};
  const auto refused = [&](std::size_t index, std::uint64_t value) {
    const std::uint64_t before = word(record.fd(), index);
    set_word(record.fd(), index, value);
    EXPECT_THROW(Marks(record.fd(), 200, lanes), std::invalid_argument) << index << " = " << value;
    set_word(record.fd(), index, before);
  };
  refused(0, 1);    // above received
  refused(1, 101);  // beyond the lane
  refused(9, 99);   // before the lane
  refused(9, 201);
  EXPECT_NO_THROW(Marks(record.fd(), 200, lanes));
}

TEST(Marks, RefuseLanesWithGapsAndRecordsWithoutAPage) {
  const rig::Record record;
  using Lanes = std::vector<Bounds>;
  for (const Lanes& lanes : {Lanes{}, Lanes{{0, 99}}, Lanes{{0, 50}, {51, 100}}, Lanes{{0, 50}, {50, 50}, {50, 100}},
                             Lanes{{1, 100}}, Lanes{{0, 101}}}) {
    EXPECT_THROW(Marks(record.fd(), 100, lanes), std::invalid_argument);
  }
  Lanes many;
  for (std::uint64_t i = 0; i < 300; ++i) {
    many.push_back({i, i + 1});
  }
  EXPECT_THROW(Marks(record.fd(), 300, many), std::invalid_argument);
  ASSERT_EQ(ftruncate(record.fd(), 4095), 0);
  EXPECT_THROW(Marks(record.fd(), 100, {{0, 100}}), std::invalid_argument);
}

TEST(Marks, KeepTheirOrder) {
  rig::Arena arena(rig::pattern(100), {{0, 40}, {40, 100}});
  Marks& marks = *arena.marks;
  marks.set_verified(0, 20);
  EXPECT_THROW(marks.set_verified(0, 19), std::invalid_argument);
  EXPECT_THROW(marks.set_verified(0, 41), std::invalid_argument);
  EXPECT_THROW(marks.set_received(0, 19), std::invalid_argument);
  EXPECT_THROW(marks.set_received(0, 41), std::invalid_argument);
  EXPECT_THROW(marks.set_verified(1, 39), std::invalid_argument);
  EXPECT_THROW(marks.set_verified(2, 50), std::out_of_range);
  marks.set_received(0, 40);
  marks.set_received(0, 20);  // a chunk was wrong
  EXPECT_EQ(marks.received(0), 20);
}

TEST(Marks, RunsGoThroughNeighbouringLanes) {
  rig::Arena arena(rig::pattern(100), {{0, 40}, {40, 70}, {70, 100}});
  Marks& marks = *arena.marks;
  marks.set_verified(1, 60);
  EXPECT_EQ(marks.valid_end(0), 0);
  EXPECT_EQ(marks.valid_end(45), 60);
  EXPECT_EQ(marks.valid_end(60), 60);
  EXPECT_EQ(marks.valid_end(65), 65);
  marks.set_verified(0, 40);
  EXPECT_EQ(marks.valid_end(10), 60);
  marks.set_verified(2, 80);
  EXPECT_EQ(marks.valid_end(10), 60) << "the gap at 60 ends the run";
  marks.set_verified(1, 70);
  EXPECT_EQ(marks.valid_end(10), 80);
  marks.fill();
  EXPECT_EQ(marks.valid_end(10), 100);
  EXPECT_EQ(marks.valid_end(100), 100);
  EXPECT_EQ(marks.valid_end(1000), 1000);
  EXPECT_EQ(marks.total_verified(), 100);
}

TEST(Marks, EveryStepWakesWhoeverWaitsForIt) {
  constexpr std::uint64_t kSteps = 2000;
  rig::Arena arena(rig::pattern(2 * kSteps), {{0, kSteps}, {kSteps, 2 * kSteps}});
  std::vector<std::unique_ptr<rig::Task>> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.push_back(std::make_unique<rig::Task>([&marks = *arena.marks] {
      for (std::uint64_t at = 0; at < 2 * kSteps;) {
        const std::uint64_t valid = marks.wait_valid(at, at + 1, kLong);
        if (valid <= at) {
          throw std::runtime_error("slept through byte " + std::to_string(at));
        }
        at = valid;
      }
    }));
  }
  rig::Task second([&] {
    for (std::uint64_t i = 1; i <= kSteps; ++i) {
      arena.marks->set_verified(1, kSteps + i);
    }
  });
  for (std::uint64_t i = 1; i <= kSteps; ++i) {
    arena.marks->set_received(0, i);
    arena.marks->set_verified(0, i);
  }
  second.result();
  for (auto& waiter : waiters) {
    EXPECT_NO_THROW(waiter->result());
  }
}

TEST(Marks, ClosingWakesWaitersAndEndsWriting) {
  rig::Arena arena(rig::pattern(100));
  rig::Task waiter([&] { (void)arena.marks->wait_valid(0, 1, kLong); });
  arena.marks->close();
  arena.marks->close();
  EXPECT_THROW(waiter.result(), MarksClosed);
  EXPECT_THROW((void)arena.marks->wait_valid(0, 1, kLong), MarksClosed);
  EXPECT_THROW(arena.marks->set_verified(0, 1), MarksClosed);
  EXPECT_THROW(arena.marks->set_received(0, 1), MarksClosed);
  EXPECT_THROW(arena.marks->fill(), MarksClosed);
  EXPECT_EQ(arena.marks->verified(0), 0) << "looking is still possible";
}

TEST(Marks, AWaitEndsInTimeAndTheGenerationRises) {
  rig::Arena arena(rig::pattern(100));
  EXPECT_EQ(arena.marks->wait_valid(10, 20, rig::kShort), 10);
  const std::uint64_t before = arena.marks->generation();
  arena.marks->set_received(0, 1);
  EXPECT_GT(arena.marks->generation(), before);
}

}  // namespace
}  // namespace flashboot
