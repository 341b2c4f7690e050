// The masks of delta_kernel.inl element by element, for machines without anything wider and as what the others are
// tested against; and the choice among them.
#include "delta_kernel.hpp"

#include "delta_kernel.inl"

namespace flashboot {
namespace {

struct ScalarOps {
  template <int kWord>
  static std::uint64_t differs(const std::byte* a, const std::byte* b) {
    if (__builtin_memcmp(a, b, kBlock * kWord) == 0) {
      return 0;
    }
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      mask |= std::uint64_t{load_word(a + i * kWord, kWord) != load_word(b + i * kWord, kWord)} << i;
    }
    return mask;
  }

  template <int kWord, int kPlanes>
  static void planes(const std::byte* block, const Classes& classes, std::uint64_t* plane) {
    for (int p = 0; p < kPlanes; ++p) {
      plane[p] = 0;
    }
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint32_t exponent = exponent_of(load_word(block + i * kWord, kWord), classes.words);
      const std::uint32_t below = classes.top > exponent ? classes.top - exponent : 0;
      const std::uint32_t c = below < classes.count ? below : classes.count - 1U;
      for (int p = 0; p < kPlanes; ++p) {
        plane[p] |= std::uint64_t{c >> p & 1} << i;
      }
    }
  }
};

}  // namespace

const DeltaKernel kScalarKernel = {"scalar", &scan_any<ScalarOps>, &locate_any<ScalarOps>};

const DeltaKernel* const* delta_kernels() noexcept {
#if defined(__x86_64__)
  static const DeltaKernel* const wide[] = {&kAvx2Kernel, &kScalarKernel, nullptr};
  static const bool has_it = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
                             __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("popcnt") != 0;
  return has_it ? wide : wide + 1;
#elif defined(__aarch64__)
  static const DeltaKernel* const wide[] = {&kNeonKernel, &kScalarKernel, nullptr};
  return wide;
#else
  static const DeltaKernel* const plain[] = {&kScalarKernel, nullptr};
  return plain;
#endif
}

}  // namespace flashboot
