// The masks of delta_kernel.inl with AVX2, POPCNT and BMI2. Uses no inline function of a library: xxh3_avx2.cpp says why.
#include <immintrin.h>

#include "delta_kernel.hpp"

#include "delta_kernel.inl"

namespace flashboot {
namespace {

inline __m256i load(const std::byte* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

inline std::uint64_t top_bits(__m256i low, __m256i high) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// 64 exponents as bytes, in order.
template <int kWord>
inline void exponents(const std::byte* block, const Words& words, __m256i& low, __m256i& high) {
  const __m128i shift = _mm_cvtsi32_si128(words.shift);
  if constexpr (kWord == 1) {
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(words.mask));  // also takes off the neighbour's bits
    low = _mm256_and_si256(_mm256_srl_epi16(load(block), shift), mask);
    high = _mm256_and_si256(_mm256_srl_epi16(load(block + 32), shift), mask);
  } else if constexpr (kWord == 2) {
    const __m256i mask = _mm256_set1_epi16(words.mask);
    __m256i x[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_and_si256(_mm256_srl_epi16(load(block + 32 * i), shift), mask);
    }
    low = _mm256_permute4x64_epi64(_mm256_packus_epi16(x[0], x[1]), 0xd8);
    high = _mm256_permute4x64_epi64(_mm256_packus_epi16(x[2], x[3]), 0xd8);
  } else {
    const __m256i mask = _mm256_set1_epi32(words.mask), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i x[8];
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm256_and_si256(_mm256_srl_epi32(load(block + 32 * i), shift), mask);
    }
    const __m256i a = _mm256_packus_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
    const __m256i b = _mm256_packus_epi16(_mm256_packs_epi32(x[4], x[5]), _mm256_packs_epi32(x[6], x[7]));
    low = _mm256_permutevar8x32_epi32(a, order);
    high = _mm256_permutevar8x32_epi32(b, order);
  }
}

struct Avx2Ops {
  template <int kWord>
  static std::uint64_t differs(const std::byte* a, const std::byte* b) {
    __m256i low, high;
    if constexpr (kWord == 1) {
      low = _mm256_cmpeq_epi8(load(a), load(b));
      high = _mm256_cmpeq_epi8(load(a + 32), load(b + 32));
    } else if constexpr (kWord == 2) {
      __m256i x[4];
      for (int i = 0; i < 4; ++i) {
        x[i] = _mm256_cmpeq_epi16(load(a + 32 * i), load(b + 32 * i));
      }
      low = _mm256_permute4x64_epi64(_mm256_packs_epi16(x[0], x[1]), 0xd8);
      high = _mm256_permute4x64_epi64(_mm256_packs_epi16(x[2], x[3]), 0xd8);
    } else {
      const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      __m256i x[8];
      for (int i = 0; i < 8; ++i) {
        x[i] = _mm256_cmpeq_epi32(load(a + 32 * i), load(b + 32 * i));
      }
      const __m256i first = _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
      const __m256i second = _mm256_packs_epi16(_mm256_packs_epi32(x[4], x[5]), _mm256_packs_epi32(x[6], x[7]));
      low = _mm256_permutevar8x32_epi32(first, order);
      high = _mm256_permutevar8x32_epi32(second, order);
    }
    return ~top_bits(low, high);
  }

  template <int kWord, int kPlanes>
  static void planes(const std::byte* block, const Classes& classes, std::uint64_t* plane) {
    __m256i low, high;
    exponents<kWord>(block, classes.words, low, high);
    const __m256i top = _mm256_set1_epi8(static_cast<char>(classes.top));
    const __m256i last = _mm256_set1_epi8(static_cast<char>(classes.count - 1));
    low = _mm256_min_epu8(_mm256_subs_epu8(top, low), last);
    high = _mm256_min_epu8(_mm256_subs_epu8(top, high), last);
    low = _mm256_slli_epi16(low, 8 - kPlanes);  // the class's highest bit is the byte's
    high = _mm256_slli_epi16(high, 8 - kPlanes);
    for (int p = kPlanes - 1; p >= 0; --p) {
      plane[p] = top_bits(low, high);
      low = _mm256_add_epi8(low, low);
      high = _mm256_add_epi8(high, high);
    }
  }
};

}  // namespace

const DeltaKernel kAvx2Kernel = {"avx2", &scan_any<Avx2Ops>, &locate_any<Avx2Ops>};

}  // namespace flashboot
