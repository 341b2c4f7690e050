// The cap on what leaves: never more than the rate on average, at once when it is lifted.
#include "egress.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace flashboot {
namespace {

TEST(EgressBucket, WithoutARateNobodyWaits) {
  EgressBucket bucket(0);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(bucket.take(1 << 30), Duration::zero());
  }
  EXPECT_EQ(bucket.slice(), 256 << 10);
}

TEST(EgressBucket, SlicesStaySmall) {
  EXPECT_EQ(EgressBucket(1).slice(), 4 << 10);
  EXPECT_EQ(EgressBucket(1'000'000).slice(), 50'000);
  EXPECT_EQ(EgressBucket(std::uint64_t{100} << 30).slice(), 256 << 10);
}

TEST(EgressBucket, DebtIsPaidBeforeTheNextSlice) {
  EgressBucket bucket(1000);
  ASSERT_EQ(bucket.take(500), Duration::zero());
  const Duration wait = bucket.take(500);
  EXPECT_GT(wait, Duration::zero());
  EXPECT_LE(wait, std::chrono::milliseconds(100)) << "so that whoever waits looks around";
  bucket.set_rate(0);
  EXPECT_EQ(bucket.take(500), Duration::zero());
}

TEST(EgressBucket, ALiftedCapFreesWhoeverIsInDebt) {
  EgressBucket bucket(10);
  ASSERT_EQ(bucket.take(1000), Duration::zero());  // 100 seconds of debt
  ASSERT_GT(bucket.take(1), Duration::zero());
  bucket.set_rate(1'000'000'000);
  Duration wait = bucket.take(1);
  for (int i = 0; i < 100 && wait != Duration::zero(); ++i) {
    std::this_thread::sleep_for(wait);  // what a sender does; microseconds here
    wait = bucket.take(1);
  }
  EXPECT_EQ(wait, Duration::zero());
}

TEST(EgressBucket, TheAverageIsTheRateForAllTogether) {
  constexpr std::uint64_t kRate = 20'000'000;
  constexpr std::size_t kSlice = 100'000;
  EgressBucket bucket(kRate);
  const Time began = Clock::now();
  std::atomic<int> left{20};
  const auto send = [&] {
    while (left-- > 0) {
      for (Duration wait = bucket.take(kSlice); wait != Duration::zero(); wait = bucket.take(kSlice)) {
        std::this_thread::sleep_for(wait);
      }
    }
  };
  {
    std::jthread other(send);
    send();
  }
  // 2 MB at 20 MB/s; the first slice and 20 ms of what was saved up are free. No upper bound: machines may be slow.
  EXPECT_GE(to_seconds(Clock::now() - began), 0.1 - 0.005 - 0.02);
}

TEST(Served, CountsAndAges) {
  Served served;
  EXPECT_EQ(served.bytes_out(), 0);
  const Duration age = served.last_byte_age();
  EXPECT_GE(served.last_byte_age(), age);
  served.add(5);
  served.add(6);
  EXPECT_EQ(served.bytes_out(), 11);
}

}  // namespace
}  // namespace flashboot
