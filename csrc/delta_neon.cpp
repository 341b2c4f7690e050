// The masks of delta_kernel.inl with NEON.
#include <arm_neon.h>

#include "delta_kernel.hpp"

#include "delta_kernel.inl"

namespace flashboot {
namespace {

inline uint8x16_t load8(const std::byte* at) { return vld1q_u8(reinterpret_cast<const std::uint8_t*>(at)); }
inline uint16x8_t load16(const std::byte* at) { return vreinterpretq_u16_u8(load8(at)); }
inline uint32x4_t load32(const std::byte* at) { return vreinterpretq_u32_u8(load8(at)); }

// One bit of each of 64 bytes, which are 0 or 255.
inline std::uint64_t bits_of(const uint8x16_t* byte) {
  const uint8x16_t place = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const uint8x16_t a = vpaddq_u8(vandq_u8(byte[0], place), vandq_u8(byte[1], place));
  const uint8x16_t b = vpaddq_u8(vandq_u8(byte[2], place), vandq_u8(byte[3], place));
  const uint8x16_t ab = vpaddq_u8(a, b);
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(ab, ab)), 0);
}

inline uint8x16_t narrow(uint16x8_t a, uint16x8_t b) { return vcombine_u8(vmovn_u16(a), vmovn_u16(b)); }
inline uint16x8_t narrow(uint32x4_t a, uint32x4_t b) { return vcombine_u16(vmovn_u32(a), vmovn_u32(b)); }

struct NeonOps {
  template <int kWord>
  static std::uint64_t differs(const std::byte* a, const std::byte* b) {
    uint8x16_t same[4];
    for (int i = 0; i < 4; ++i) {
      const std::byte *x = a + 16 * kWord * i, *y = b + 16 * kWord * i;
      if constexpr (kWord == 1) {
        same[i] = vceqq_u8(load8(x), load8(y));
      } else if constexpr (kWord == 2) {
        same[i] = narrow(vceqq_u16(load16(x), load16(y)), vceqq_u16(load16(x + 16), load16(y + 16)));
      } else {
        same[i] = narrow(narrow(vceqq_u32(load32(x), load32(y)), vceqq_u32(load32(x + 16), load32(y + 16))),
                         narrow(vceqq_u32(load32(x + 32), load32(y + 32)), vceqq_u32(load32(x + 48), load32(y + 48))));
      }
    }
    return ~bits_of(same);
  }

  template <int kWord, int kPlanes>
  static void planes(const std::byte* block, const Classes& classes, std::uint64_t* plane) {
    const int shift = -static_cast<int>(classes.words.shift);
    const uint8x16_t mask = vdupq_n_u8(classes.words.mask);
    const uint8x16_t top = vdupq_n_u8(classes.top), last = vdupq_n_u8(static_cast<std::uint8_t>(classes.count - 1));
    uint8x16_t in_class[4];
    for (int i = 0; i < 4; ++i) {
      const std::byte* x = block + 16 * kWord * i;
      uint8x16_t exponent;  // vmovn takes the low byte, which the mask is for
      if constexpr (kWord == 1) {
        exponent = vshlq_u8(load8(x), vdupq_n_s8(static_cast<std::int8_t>(shift)));
      } else if constexpr (kWord == 2) {
        const int16x8_t by = vdupq_n_s16(static_cast<std::int16_t>(shift));
        exponent = narrow(vshlq_u16(load16(x), by), vshlq_u16(load16(x + 16), by));
      } else {
        const int32x4_t by = vdupq_n_s32(shift);
        exponent = narrow(narrow(vshlq_u32(load32(x), by), vshlq_u32(load32(x + 16), by)),
                          narrow(vshlq_u32(load32(x + 32), by), vshlq_u32(load32(x + 48), by)));
      }
      in_class[i] = vminq_u8(vqsubq_u8(top, vandq_u8(exponent, mask)), last);
    }
    for (int p = 0; p < kPlanes; ++p) {
      const uint8x16_t bit = vdupq_n_u8(static_cast<std::uint8_t>(1 << p));
      uint8x16_t set[4];
      for (int i = 0; i < 4; ++i) {
        set[i] = vtstq_u8(in_class[i], bit);
      }
      plane[p] = bits_of(set);
    }
  }
};

}  // namespace

const DeltaKernel kNeonKernel = {"neon", &scan_any<NeonOps>, &locate_any<NeonOps>};

}  // namespace flashboot
