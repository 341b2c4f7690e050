// The two loops that look at every element, in the widest form that the machine has: delta_scalar.cpp, delta_avx2.cpp
// and delta_neon.cpp compile delta_kernel.inl, each for its instructions. All give the same results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "delta_words.hpp"

namespace flashboot {

// How the elements of a piece fall into classes: class 0 has the exponent `top` and above, each further one the next
// exponent below, the last one all that are left.
struct Classes {
  Words words;
  std::uint8_t count;  // 1 to kMostClasses
  std::uint8_t top;
};

// What a scan found, in the order of the elements. The arrays have room for all elements of the piece.
struct Scan {
  Classes classes;
  std::uint32_t* gap;    // elements of the same class since the change before in this class
  std::uint32_t* step;
  std::uint8_t* in_class;
  std::size_t count;
  std::uint32_t seen[kMostClasses];     // elements so far
  std::uint32_t after[kMostClasses];    // rank behind the last change
  std::uint32_t changed[kMostClasses];  // changes so far
};

inline constexpr std::int32_t kNever = 0x3fffffff;  // more than any chunk has elements

// Changes by class, on their way to places. Gaps are at most kMostElements, so that no counter overflows.
struct Locate {
  Classes classes;
  const std::uint32_t* gap;  // of all classes, one after the other
  const std::uint32_t* step;
  std::uint32_t next[kMostClasses];  // into gap and step
  std::uint32_t end[kMostClasses];
  std::int32_t left[kMostClasses];  // elements of the class until the next change; kNever
  std::uint32_t* at;                // out: elements, rising
  std::uint32_t* word;              // out: what becomes of them
  std::size_t count;                // at most as many as there are changes
};

struct DeltaKernel {
  const char* name;
  // Elements [first, last) of a piece; `first` is a multiple of 64, `last` too or the end of the piece.
  void (*scan)(Scan& scan, const std::byte* base, const std::byte* next, std::size_t first, std::size_t last);
  void (*locate)(Locate& locate, const std::byte* base, std::size_t first, std::size_t last);
};

extern const DeltaKernel kScalarKernel;
#if defined(__x86_64__)
extern const DeltaKernel kAvx2Kernel;  // only for machines with AVX2, BMI2 and POPCNT
#elif defined(__aarch64__)
extern const DeltaKernel kNeonKernel;  // every aarch64 has it
#endif

// The best one here; nullptr-terminated, the scalar one last.
[[nodiscard]] const DeltaKernel* const* delta_kernels() noexcept;
[[nodiscard]] inline const DeltaKernel& best_delta_kernel() noexcept { return **delta_kernels(); }

}  // namespace flashboot
