// The journal of a window: whatever of the window was written since, put_back makes what it was; and it writes nothing
// of a journal that is none, or leaves the memory.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "delta_rig.hpp"
#include "delta_window.hpp"
#include "errors.hpp"

namespace flashboot {
namespace {

// Comparing byte by byte takes tests, which are not optimised, minutes.
bool same(const Data& one, const Data& other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

// Chunks two and three of an arena, with sparse pieces of words of 2, 1 and 4 bytes, and a raw one.
struct Window {
  static constexpr std::size_t kBegin = kDigestChunk, kBytes = kDigestChunk + 4096;
  std::vector<WordRun> runs{{kBegin + 4096, 3}, {kBegin + 8192, 6}, {kBegin + 12288, 0},
                            {2 * kBegin, 2},      {2 * kBegin + 4096, 5}};
  Data base, next, bodies;
  std::vector<DeltaRow> rows;

  Window() {
    Random random(11);
    base = weights(kBytes, kWordFormats[3], random);
    next = changed(base, kWordFormats[3], 100, random);
    for (std::size_t at = 8192; at < 12288; ++at) {
      next[at] = static_cast<std::byte>(random.next());  // bytes that nothing is won by encoding
    }
    Data out(2 * kDigestChunk);
    rows = encode_window(base, next, kBegin, runs, 16, 1, out.data());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].mode, static_cast<std::uint64_t>(DeltaMode::kSparse));
      const auto body = out.begin() + static_cast<std::ptrdiff_t>(i * kDigestChunk);
      bodies.insert(bodies.end(), body, body + static_cast<std::ptrdiff_t>(rows[i].bytes));
    }
  }
  [[nodiscard]] std::vector<std::byte> journal() const {
    return DeltaWindow(base, kBegin, runs, rows, bodies, false, 2).journal();
  }
  // The arena around it.
  [[nodiscard]] static Data arena(const Data& window) {
    Data all(kBegin + kBytes + 100, std::byte{0x5a});
    std::ranges::copy(window, all.begin() + kBegin);
    return all;
  }
};

TEST(DeltaJournal, PutsBackWhateverOfItsWindowWasWritten) {
  const Window window;
  const std::vector<std::byte> journal = window.journal();
  const Data before = Window::arena(window.base);
  Random random(3);
  for (int i = 0; i < 16; ++i) {
    Data torn = window.base;
    if (i < 12) {  // up to a byte, in the midst of a word, too
      const std::size_t end = i == 0 ? torn.size() : random.next() % torn.size();
      std::copy_n(window.next.begin(), end, torn.begin());
    } else {  // bytes here and there, in whatever order a memory writes its lines
      for (std::size_t at = 0; at < torn.size(); ++at) {
        torn[at] = random.one_in(2) ? window.next[at] : torn[at];
      }
    }
    Data arena = Window::arena(torn);
    put_back(arena, journal);
    ASSERT_TRUE(same(arena, before)) << "try " << i;
    put_back(arena, journal);
    ASSERT_TRUE(same(arena, before)) << "once more, try " << i;
  }
}

TEST(DeltaJournal, OfAnotherArenaChangesNothing) {
  const Window window;
  const std::vector<std::byte> journal = window.journal();
  const Data whole = Window::arena(window.next);
  const std::size_t begin = Window::kBegin;
  for (const std::size_t bytes : {std::size_t{0}, begin, begin + 12000, begin + kDigestChunk}) {
    Data small(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
    const Data before = small;
    EXPECT_THROW(put_back(small, journal), Malformed) << bytes;
    EXPECT_TRUE(same(small, before)) << bytes;
  }
}

TEST(DeltaJournal, ThatEndsTooEarlyChangesNothing) {
  const Window window;
  const std::vector<std::byte> journal = window.journal();
  const Data before = Window::arena(window.next);
  for (std::size_t cut = 1; cut < journal.size(); cut += 997) {
    Data arena = before;
    const Bytes part = Bytes(journal).first(cut);
    try {
      put_back(arena, part);  // whole entries
    } catch (const Malformed&) {
      ASSERT_TRUE(same(arena, before)) << cut << " bytes";
    }
  }
}

// One entry: offset, bytes of a word (0: raw), count, then what there is of it.
std::vector<std::byte> entry(std::uint64_t offset, std::uint32_t word, std::uint32_t count, std::size_t bytes) {
  std::vector<std::byte> out(16 + bytes, std::byte{0xff});
  std::memcpy(out.data(), &offset, 8);
  std::memcpy(out.data() + 8, &word, 4);
  std::memcpy(out.data() + 12, &count, 4);
  return out;
}

TEST(DeltaJournal, WhoseNumbersAreNoPlacesChangesNothing) {
  const Data before(64, std::byte{7});
  const std::uint64_t huge = ~std::uint64_t{0};
  for (const auto& wrong : {entry(0, 3, 1, 8), entry(0, 8, 1, 8), entry(65, 0, 0, 0), entry(huge, 0, 1, 1),
                            entry(huge - 1, 2, 1, 8), entry(0, 0, 65, 65), entry(64, 0, 1, 1), entry(0, 4, 1, 8),
                            entry(0, 0, 5, 4), entry(0, 2, 0xffffffff, 8), entry(0, 0, 0xffffffff, 8)}) {
    Data memory = before;
    std::vector<std::byte> journal = entry(0, 0, 4, 4);  // a good one first: it must not be done, either
    journal.insert(journal.end(), wrong.begin(), wrong.end());
    EXPECT_THROW(put_back(memory, journal), Malformed);
    EXPECT_EQ(memory, before);
  }
  Data memory = before;
  put_back(memory, entry(60, 0, 4, 4));
  EXPECT_EQ(memory.back(), std::byte{0xff});
}

}  // namespace
}  // namespace flashboot
