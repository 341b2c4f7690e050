#include "strided_copy.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace flashboot {
namespace {

constexpr std::size_t kLine = 64;

constexpr std::int64_t kMost = std::int64_t{1} << 50;

// All places that the loops lead to, in one of the two memories; counts and steps are a stranger's.
void check(std::uint64_t bytes, std::uint64_t begin, std::uint64_t width, std::span<const CopyLoop> loops,
           std::int64_t CopyLoop::*step) {
  if (bytes > static_cast<std::uint64_t>(kMost) || width == 0 || width > bytes || begin > bytes - width) {
    throw std::invalid_argument("a copy that begins behind its memory, or of no bytes");
  }
  auto first = static_cast<std::int64_t>(begin), last = first;
  for (const CopyLoop& loop : loops) {
    std::int64_t way = 0;
    if (loop.count == 0 || loop.count > static_cast<std::uint64_t>(kMost) ||
        __builtin_mul_overflow(static_cast<std::int64_t>(loop.count - 1), loop.*step, &way) || way > kMost ||
        way < -kMost) {
      throw std::invalid_argument("loops that leave the memory");
    }
    (way < 0 ? first : last) += way;
    if (first < 0 || last > static_cast<std::int64_t>(bytes - width)) {
      throw std::invalid_argument("loops that leave the memory");
    }
  }
}

// 16 bytes of elements of one size.
template <std::size_t kWidth>
struct Lanes;
template <>
struct Lanes<1> { using Vector = std::uint8_t __attribute__((vector_size(16))); };
template <>
struct Lanes<2> { using Vector = std::uint16_t __attribute__((vector_size(16))); };
template <>
struct Lanes<4> { using Vector = std::uint32_t __attribute__((vector_size(16))); };
template <>
struct Lanes<8> { using Vector = std::uint64_t __attribute__((vector_size(16))); };

// Elements of the lower (kHalf 0) or upper halves of both, in turn.
template <std::size_t kHalf, typename Vector, std::size_t... kAt>
Vector interleave(Vector one, Vector other, std::index_sequence<kAt...>) {
  constexpr std::size_t kCount = sizeof...(kAt);
  return __builtin_shufflevector(one, other, (kHalf * kCount / 2 + kAt / 2 + kAt % 2 * kCount)...);
}

// A square of 16 bytes by as many elements, from neighbouring lines. Interleaving the first half of the vectors with the
// second transposes them after as many turns as a number of a vector has bits.
template <std::size_t kWidth>
void transpose_square(std::byte* target, std::int64_t row_step, const std::byte* lines) {
  using Vector = typename Lanes<kWidth>::Vector;
  constexpr std::size_t kCount = 16 / kWidth;
  using Numbers = std::make_index_sequence<kCount>;
  std::array<Vector, kCount> in, out;
  for (std::size_t i = 0; i < kCount; ++i) {
    std::memcpy(&in[i], lines + i * kLine, sizeof(Vector));
  }
  for (std::size_t turn = 1; turn < kCount; turn *= 2) {
    for (std::size_t i = 0; i < kCount / 2; ++i) {
      out[2 * i] = interleave<0>(in[i], in[i + kCount / 2], Numbers{});
      out[2 * i + 1] = interleave<1>(in[i], in[i + kCount / 2], Numbers{});
    }
    in = out;
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    std::memcpy(target + static_cast<std::int64_t>(i) * row_step, &in[i], sizeof(Vector));
  }
}

// Columns of the source become rows of the target: `rows` neighbours in the source, at steps of `row_step` in the
// target; `columns` neighbours in the target, at steps of `step` in the source.
template <std::size_t kWidth>
void transpose(std::byte* target, const std::byte* source, std::size_t rows, std::int64_t row_step, std::size_t columns,
               std::int64_t step) {
  constexpr std::size_t kTile = kLine / kWidth, kSquare = 16 / kWidth;
  std::array<std::array<std::byte, kLine>, kTile> lines;
  for (std::size_t column = 0; column < columns; column += kTile) {
    const std::size_t wide = std::min(kTile, columns - column);
    for (std::size_t row = 0; row < rows; row += kTile) {
      const std::size_t high = std::min(kTile, rows - row);
      const std::byte* const from = source + static_cast<std::int64_t>(column) * step + row * kWidth;
      std::byte* const to = target + static_cast<std::int64_t>(row) * row_step + column * kWidth;
      if (wide == kTile && high == kTile) {
        for (std::size_t j = 0; j < kTile; ++j) {
          std::memcpy(lines[j].data(), from + static_cast<std::int64_t>(j) * step, kLine);
        }
        for (std::size_t i = 0; i < kTile; i += kSquare) {
          for (std::size_t j = 0; j < kTile; j += kSquare) {
            transpose_square<kWidth>(to + static_cast<std::int64_t>(i) * row_step + j * kWidth, row_step,
                                     lines[j].data() + i * kWidth);
          }
        }
        continue;
      }
      for (std::size_t i = 0; i < high; ++i) {
        for (std::size_t j = 0; j < wide; ++j) {
          std::memcpy(to + static_cast<std::int64_t>(i) * row_step + j * kWidth,
                      from + static_cast<std::int64_t>(j) * step + i * kWidth, kWidth);
        }
      }
    }
  }
}

// The two innermost loops, of elements of one size.
template <std::size_t kWidth>
void matrix(std::byte* target, const std::byte* source, const CopyLoop& outer, const CopyLoop& inner) {
  if (outer.from == kWidth && inner.to == kWidth) {
    transpose<kWidth>(target, source, outer.count, outer.to, inner.count, inner.from);
    return;
  }
  for (std::uint64_t i = 0; i < outer.count; ++i, target += outer.to, source += outer.from) {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(inner.count); ++j) {
      std::memcpy(target + j * inner.to, source + j * inner.from, kWidth);
    }
  }
}

void pieces(std::byte* target, const std::byte* source, std::uint64_t width, const CopyLoop& outer,
            const CopyLoop& inner) {
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(outer.count); ++i) {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(inner.count); ++j) {
      std::memcpy(target + i * outer.to + j * inner.to, source + i * outer.from + j * inner.from, width);
    }
  }
}

void innermost(std::byte* target, const std::byte* source, std::uint64_t width, const CopyLoop& outer,
               const CopyLoop& inner) {
  switch (width) {
    case 1:
      return matrix<1>(target, source, outer, inner);
    case 2:
      return matrix<2>(target, source, outer, inner);
    case 4:
      return matrix<4>(target, source, outer, inner);
    case 8:
      return matrix<8>(target, source, outer, inner);
    default:
      return pieces(target, source, width, outer, inner);
  }
}

void descend(std::byte* target, const std::byte* source, std::uint64_t width, std::span<const CopyLoop> loops) {
  if (loops.size() == 2) {
    innermost(target, source, width, loops[0], loops[1]);
    return;
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(loops[0].count); ++i) {
    descend(target + i * loops[0].to, source + i * loops[0].from, width, loops.subspan(1));
  }
}

}  // namespace

void strided_copy(std::span<std::byte> target, std::span<const std::byte> source, std::uint64_t to, std::uint64_t from,
                  std::uint64_t width, std::span<const CopyLoop> loops) {
  check(source.size(), from, width, loops, &CopyLoop::from);
  check(target.size(), to, width, loops, &CopyLoop::to);
  constexpr CopyLoop kOnce{1, 0, 0};
  std::byte* const begin = target.data() + to;
  if (loops.size() < 2) {
    innermost(begin, source.data() + from, width, kOnce, loops.empty() ? kOnce : loops[0]);
  } else {
    descend(begin, source.data() + from, width, loops);
  }
}

}  // namespace flashboot
