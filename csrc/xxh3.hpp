// Plain xxh3-64 in the widest form that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashboot {

#if defined(__x86_64__)
// Compiled for AVX2 (CMakeLists.txt); only for machines that have it.
[[nodiscard]] std::uint64_t xxh3_64_avx2(const void* data, std::size_t size) noexcept;
#endif

}  // namespace flashboot
