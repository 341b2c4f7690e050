// Strided copies beside the plainest loop that does the same, and what is refused.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "delta_rig.hpp"
#include "strided_copy.hpp"

namespace flashboot {
namespace {

void plainly(Data& target, const Data& source, std::int64_t to, std::int64_t from, std::size_t width,
             std::span<const CopyLoop> loops) {
  if (loops.empty()) {
    std::memcpy(target.data() + to, source.data() + from, width);
    return;
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(loops[0].count); ++i) {
    plainly(target, source, to + i * loops[0].to, from + i * loops[0].from, width, loops.subspan(1));
  }
}

Data noise(std::size_t bytes, Random& random) {
  Data data(bytes);
  for (std::byte& each : data) {
    each = static_cast<std::byte>(random.next());
  }
  return data;
}

struct Reach {
  std::int64_t first = 0, last = 0;
  void go(std::uint64_t count, std::int64_t step) {
    const std::int64_t way = static_cast<std::int64_t>(count - 1) * step;
    (way < 0 ? first : last) += way;
  }
  [[nodiscard]] std::size_t bytes(std::size_t width) const { return static_cast<std::size_t>(last - first) + width; }
};

// In memories of exactly the bytes that are reached, so that the sanitizers see one too far.
void expect_plain(std::size_t width, std::span<const CopyLoop> loops, Random& random) {
  Reach from, to;
  for (const CopyLoop& loop : loops) {
    from.go(loop.count, loop.from);
    to.go(loop.count, loop.to);
  }
  const Data source = noise(from.bytes(width), random);
  Data target(to.bytes(width)), wanted(to.bytes(width));
  plainly(wanted, source, -to.first, -from.first, width, loops);
  const auto to_begin = static_cast<std::uint64_t>(-to.first), from_begin = static_cast<std::uint64_t>(-from.first);
  strided_copy(target, source, to_begin, from_begin, width, loops);
  ASSERT_EQ(target, wanted);
}

TEST(StridedCopy, TransposesMatricesOfEverySizeAndWidth) {
  Random random(1);
  for (const std::size_t width : {1, 2, 4, 8, 3, 16}) {
    for (const std::size_t rows : {1, 7, 31, 32, 33, 65, 130}) {
      for (const std::size_t columns : {1, 3, 8, 16, 64, 67}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns << " of " << width << " bytes");
        const auto wide = static_cast<std::int64_t>(width);
        const auto across = static_cast<std::int64_t>(columns) * wide + 8;
        const auto down = static_cast<std::int64_t>(rows) * wide;
        const CopyLoop loops[] = {{columns, wide, down + 6}, {rows, across, wide}};
        expect_plain(width, loops, random);
      }
    }
  }
}

TEST(StridedCopy, FollowsEveryLoop) {
  Random random(2);
  for (int i = 0; i < 3000; ++i) {
    const std::size_t width = 1 + random.next() % 9;
    std::vector<CopyLoop> loops;
    // Targets of their own for all pieces: two that overlap may be written in any order.
    auto to = static_cast<std::int64_t>(width);
    for (std::uint32_t j = random.next() % 5; j > 0; --j) {
      to += static_cast<std::int64_t>(random.next() % 3);
      const CopyLoop loop{1 + random.next() % 6, static_cast<std::int64_t>(random.next() % 61) - 30,
                          random.one_in(2) ? to : -to};
      to *= static_cast<std::int64_t>(loop.count);
      loops.insert(loops.begin(), loop);
    }
    expect_plain(width, loops, random);
  }
}

TEST(StridedCopy, RefusesWhatLeavesOneOfTheTwo) {
  const Data source(100), before(20, std::byte{9});
  const std::int64_t huge = std::int64_t{1} << 62;
  const std::uint64_t all = ~std::uint64_t{0};
  struct Wrong {
    std::uint64_t to, from, width;
    std::vector<CopyLoop> loops;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {0, 0, 0, {}}, {0, 99, 2, {}}, {0, 101, 2, {}}, {0, all, 2, {}}, {19, 0, 2, {}}, {all, 0, 2, {}},
           {0, 0, 21, {}},
           {0, 0, 2, {{10, 11, 2}}}, {0, 8, 2, {{10, -1, 2}}}, {1, 0, 2, {{10, 2, 2}}}, {0, 0, 2, {{11, 2, 2}}},
           {10, 0, 2, {{10, 2, -2}}}, {0, 0, 2, {{0, 2, 2}}}, {0, 0, 2, {{2, huge, 2}, {2, huge, 2}}},
           {0, 0, 2, {{4, huge, 2}}}, {0, 0, 2, {{4, 2, -huge}}}, {0, 0, 2, {{all, 0, 0}}},
           {0, 0, 2, {{std::uint64_t{1} << 63, 0, 0}, {4, 0, 0}}}}) {
    Data target = before;
    EXPECT_THROW(strided_copy(target, source, wrong.to, wrong.from, wrong.width, wrong.loops), std::invalid_argument);
    EXPECT_EQ(target, before);
  }
}

}  // namespace
}  // namespace flashboot
