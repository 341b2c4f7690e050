// The one file that is compiled for AVX2. It uses no inline function of any library but xxhash's, which are static here:
// a shared one could be kept by the linker in this form and run on a machine without AVX2.
#include "xxh3.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace flashboot {

std::uint64_t xxh3_64_avx2(const void* data, std::size_t size) noexcept { return XXH3_64bits(data, size); }

}  // namespace flashboot
