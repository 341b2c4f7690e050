// One piece of a chunk: neighbouring bytes that are words of one format. Encoding it against a base, and finding out
// where the changes of an encoded one go.
//
// What always holds: `locate_piece` writes nothing to the piece; what it gives lies inside of the piece, in rising
// order; it throws Malformed for bytes that no encoder makes, after bounded work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "delta_kernel.hpp"
#include "delta_rice.hpp"
#include "digest.hpp"

namespace flashboot {

enum class DeltaMode : std::uint8_t { kSame = 0, kSparse = 1, kRaw = 2 };

inline constexpr std::size_t kMostElements = kDigestChunk;  // of a piece: bytes of a chunk

// Memory of one thread for any number of pieces; pages are touched only as far as there are changes.
struct DeltaWorkspace {
  std::unique_ptr<std::uint32_t[]> found = std::make_unique_for_overwrite<std::uint32_t[]>(2 * kMostElements);
  std::unique_ptr<std::uint32_t[]> sorted = std::make_unique_for_overwrite<std::uint32_t[]>(2 * kMostElements);
  std::unique_ptr<std::uint8_t[]> in_class = std::make_unique_for_overwrite<std::uint8_t[]>(kMostElements);
  const DeltaKernel* kernel = &best_delta_kernel();
};

// Called before the bytes up to this offset of a piece are looked at: whoever hashes them does so while they are cold.
struct Ahead {
  void (*call)(void* self, std::size_t bytes);
  void* self;
  void operator()(std::size_t bytes) const { call(self, bytes); }
};

class PieceEncoder {
 public:
  explicit PieceEncoder(DeltaWorkspace& workspace) : space_(workspace) {}

  // Looks at everything, unless a sample says that coding would save less than a quarter. `classes`: 1 to kMostClasses.
  void look(const std::byte* base, const std::byte* next, std::size_t elements, const Words& words, unsigned classes,
            const Ahead& ahead);
  // Changes that are known, in rising order, for one class.
  void take(const std::uint32_t* at, const std::uint32_t* step, std::uint32_t count, std::size_t elements,
            const Words& words);

  [[nodiscard]] DeltaMode mode() const { return mode_; }
  [[nodiscard]] std::uint32_t changed() const { return changed_; }
  // With the byte of the mode.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // `next` is what `look` had; writes `bytes()` bytes.
  std::byte* write(const std::byte* next, std::byte* out) const;

 private:
  void settle(std::size_t raw_bytes);

  DeltaWorkspace& space_;
  DeltaMode mode_ = DeltaMode::kSame;
  std::uint32_t changed_ = 0;
  std::size_t bytes_ = 0;
  std::size_t raw_bytes_ = 0;
  std::uint8_t top_ = 0;
  unsigned classes_ = 1;
  ClassCode code_[kMostClasses];
};

struct Located {
  const std::uint32_t* at;    // elements
  const std::uint32_t* word;  // what becomes of them
  std::size_t count;
  const std::byte* raw;       // all of the piece's new bytes instead, or nullptr
};

// Reads one piece at `at`, which moves behind it. The result is valid until the workspace is used again.
[[nodiscard]] Located locate_piece(const std::byte* base, std::size_t elements, const Words& words,
                                   const std::byte*& at, const std::byte* end, DeltaWorkspace& workspace,
                                   const Ahead& ahead);

}  // namespace flashboot
