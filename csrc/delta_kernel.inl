// The loops of delta_kernel.hpp over blocks of 64 elements, as masks of 64 bits. `Ops` makes the masks.
//
// The class of an element has up to four bits. A plane is one of these bits for all 64 elements; from the planes come
// the masks of all classes by two operations each. No function of any library is used, and all here is static
// (xxh3_avx2.cpp says why).

namespace flashboot {
namespace {

constexpr std::size_t kBlock = 64;

// Elements of each class as a mask.
template <int kPlanes>
inline void split(const std::uint64_t* plane, std::uint64_t valid, std::uint64_t* mask) {
  mask[0] = valid;
#pragma GCC unroll 4
  for (int p = 0; p < kPlanes; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < 1 << p; ++c) {
      mask[c + (1 << p)] = mask[c] & plane[p];
      mask[c] &= ~plane[p];
    }
  }
}

// The place of the set bit that has `rank` set bits below it.
inline unsigned select_bit(std::uint64_t mask, unsigned rank) {
#if defined(__BMI2__)
  return static_cast<unsigned>(__builtin_ctzll(_pdep_u64(std::uint64_t{1} << rank, mask)));
#else
  while (rank-- != 0) {
    mask &= mask - 1;
  }
  return static_cast<unsigned>(__builtin_ctzll(mask));
#endif
}

inline std::uint32_t count_bits(std::uint64_t mask) { return static_cast<std::uint32_t>(__builtin_popcountll(mask)); }

// 64 elements to look at, also where fewer are left.
template <int kWord>
struct Block {
  const std::byte* at;
  alignas(64) std::byte padded[kBlock * kWord];

  inline void take(const std::byte* from, std::size_t elements) {
    if (elements >= kBlock) {
      at = from;
      return;
    }
    __builtin_memset(padded, 0, sizeof padded);
    __builtin_memcpy(padded, from, elements * kWord);
    at = padded;
  }
};

inline std::uint64_t valid_mask(std::size_t elements) {
  return elements >= kBlock ? ~std::uint64_t{0} : (std::uint64_t{1} << elements) - 1;
}

template <typename Ops, int kWord, int kPlanes>
void scan_blocks(Scan& scan, const std::byte* base, const std::byte* next, std::size_t first, std::size_t last) {
  Block<kWord> old_block, new_block;
  std::uint32_t seen[1 << kPlanes];
  for (int c = 0; c < 1 << kPlanes; ++c) {
    seen[c] = kPlanes == 0 ? static_cast<std::uint32_t>(first) : scan.seen[c];
  }
  for (std::size_t e = first; e < last; e += kBlock) {
    old_block.take(base + e * kWord, last - e);
    new_block.take(next + e * kWord, last - e);
    std::uint64_t differs = Ops::template differs<kWord>(old_block.at, new_block.at);
    std::uint64_t plane[kPlanes + 1], mask[1 << kPlanes];
    if constexpr (kPlanes > 0) {
      Ops::template planes<kWord, kPlanes>(old_block.at, scan.classes, plane);
      split<kPlanes>(plane, valid_mask(last - e), mask);
    }
    while (differs != 0) {
      const auto i = static_cast<unsigned>(__builtin_ctzll(differs));
      differs &= differs - 1;
      unsigned c = 0;
      std::uint32_t rank = seen[0] + i;
      if constexpr (kPlanes > 0) {
        for (int p = 0; p < kPlanes; ++p) {
          c |= static_cast<unsigned>(plane[p] >> i & 1) << p;
        }
        rank = seen[c] + count_bits(mask[c] & ((std::uint64_t{1} << i) - 1));
      }
      scan.gap[scan.count] = rank - scan.after[c];
      scan.step[scan.count] = step_between(load_word(old_block.at + i * kWord, kWord),
                                           load_word(new_block.at + i * kWord, kWord), scan.classes.words);
      scan.in_class[scan.count++] = static_cast<std::uint8_t>(c);
      scan.after[c] = rank + 1;
      scan.changed[c] += 1;
    }
    if constexpr (kPlanes > 0) {
      for (int c = 0; c < 1 << kPlanes; ++c) {
        seen[c] += count_bits(mask[c]);
      }
    } else {
      seen[0] += kBlock;
    }
  }
  for (int c = 0; c < 1 << kPlanes; ++c) {
    scan.seen[c] = seen[c];
  }
}

// The changes of one block, in the order of the elements. The masks are made once more from the planes: those of the
// loop over blocks would be in memory, not in registers, if this function were given a pointer to them.
template <int kPlanes>
struct Planes {
  std::uint64_t plane[kPlanes];
};
template <int kWord, int kPlanes>
[[gnu::noinline]] void locate_in_block(Locate& locate, const std::byte* block, std::size_t first,
                                       Planes<kPlanes> planes, std::uint64_t valid, std::int32_t* left) {
  std::uint64_t mask[1 << kPlanes];
  split<kPlanes>(planes.plane, valid, mask);
  unsigned passed = 0;  // classes that have a change here
  for (int c = 0; c < 1 << kPlanes; ++c) {
    passed |= static_cast<std::uint32_t>(left[c]) >> 31 << c;
  }
  std::uint64_t hits = 0;
  std::uint32_t step[kBlock];
  for (; passed != 0; passed &= passed - 1) {
    const auto c = static_cast<unsigned>(__builtin_ctz(passed));
    const auto there = static_cast<std::int32_t>(count_bits(mask[c]));
    std::int32_t rank = left[c] + there;
    do {
      const unsigned i = select_bit(mask[c], static_cast<unsigned>(rank));
      hits |= std::uint64_t{1} << i;
      step[i] = locate.step[locate.next[c]++];
      const bool more = locate.next[c] < locate.end[c];
      rank += 1 + (more ? static_cast<std::int32_t>(locate.gap[locate.next[c]]) : kNever);
    } while (rank < there);
    left[c] = rank - there;
  }
  for (; hits != 0; hits &= hits - 1) {
    const auto i = static_cast<unsigned>(__builtin_ctzll(hits));
    locate.at[locate.count] = static_cast<std::uint32_t>(first + i);
    locate.word[locate.count++] = stepped(load_word(block + i * kWord, kWord), step[i], locate.classes.words);
  }
}

template <typename Ops, int kWord, int kPlanes>
void locate_blocks(Locate& locate, const std::byte* base, std::size_t first, std::size_t last) {
  constexpr int kClasses = 1 << kPlanes;
  const Classes classes = locate.classes;
  Block<kWord> block;
  std::int32_t left[kClasses];
  __builtin_memcpy(left, locate.left, sizeof left);
  for (std::size_t e = first; e < last; e += kBlock) {
    block.take(base + e * kWord, last - e);
    Planes<kPlanes> planes;
    std::uint64_t mask[kClasses];
    Ops::template planes<kWord, kPlanes>(block.at, classes, planes.plane);
    const std::uint64_t valid = valid_mask(last - e);
    split<kPlanes>(planes.plane, valid, mask);
    std::int32_t lowest = 0;
#pragma GCC unroll 16
    for (int c = 0; c < kClasses; ++c) {
      left[c] -= static_cast<std::int32_t>(count_bits(mask[c]));
      lowest |= left[c];
    }
    if (__builtin_expect(lowest < 0, 0)) {
      locate_in_block<kWord, kPlanes>(locate, block.at, e, planes, valid, left);
    }
  }
  __builtin_memcpy(locate.left, left, sizeof left);
}

inline int planes_for(unsigned classes) {
  return classes <= 1 ? 0 : classes <= 2 ? 1 : classes <= 4 ? 2 : classes <= 8 ? 3 : 4;
}

template <typename Ops, int kWord>
void scan_words(Scan& scan, const std::byte* base, const std::byte* next, std::size_t first, std::size_t last) {
  switch (planes_for(scan.classes.count)) {
    case 0: return scan_blocks<Ops, kWord, 0>(scan, base, next, first, last);
    case 1: return scan_blocks<Ops, kWord, 1>(scan, base, next, first, last);
    case 2: return scan_blocks<Ops, kWord, 2>(scan, base, next, first, last);
    case 3: return scan_blocks<Ops, kWord, 3>(scan, base, next, first, last);
    default: return scan_blocks<Ops, kWord, 4>(scan, base, next, first, last);
  }
}

template <typename Ops, int kWord>
void locate_words(Locate& locate, const std::byte* base, std::size_t first, std::size_t last) {
  switch (planes_for(locate.classes.count)) {
    case 0:
    case 1: return locate_blocks<Ops, kWord, 1>(locate, base, first, last);
    case 2: return locate_blocks<Ops, kWord, 2>(locate, base, first, last);
    case 3: return locate_blocks<Ops, kWord, 3>(locate, base, first, last);
    default: return locate_blocks<Ops, kWord, 4>(locate, base, first, last);
  }
}

template <typename Ops>
void scan_any(Scan& scan, const std::byte* base, const std::byte* next, std::size_t first, std::size_t last) {
  switch (scan.classes.words.bytes) {
    case 1: return scan_words<Ops, 1>(scan, base, next, first, last);
    case 2: return scan_words<Ops, 2>(scan, base, next, first, last);
    default: return scan_words<Ops, 4>(scan, base, next, first, last);
  }
}

template <typename Ops>
void locate_any(Locate& locate, const std::byte* base, std::size_t first, std::size_t last) {
  switch (locate.classes.words.bytes) {
    case 1: return locate_words<Ops, 1>(locate, base, first, last);
    case 2: return locate_words<Ops, 2>(locate, base, first, last);
    default: return locate_words<Ops, 4>(locate, base, first, last);
  }
}

}  // namespace
}  // namespace flashboot
