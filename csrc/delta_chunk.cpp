#include "delta_chunk.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "errors.hpp"

namespace flashboot {
namespace {

const Words& words_of(const WordRun& run) { return kWordFormats[run.format]; }

struct Cut {
  std::size_t begin, end;  // in the chunk
  Words words;
};

// The pieces of the chunk at `offset`.
template <typename Each>
void each_piece(std::uint64_t offset, std::size_t bytes, std::span<const WordRun> runs, const Each& each) {
  auto run = std::ranges::upper_bound(runs, offset, {}, &WordRun::end);
  for (std::size_t begin = 0; begin < bytes; ++run) {
    const std::size_t end = static_cast<std::size_t>(std::min<std::uint64_t>(run->end - offset, bytes));
    each(Cut{begin, end, words_of(*run)});
    begin = end;
  }
}

// Hashes a chunk leaf by leaf as the pieces are looked at.
class Hashing {
 public:
  explicit Hashing(Bytes first, Bytes second = {}) : chunk_{first, second} {}
  void begin_piece(std::size_t at) { piece_ = at; }
  Ahead ahead() { return {&Hashing::extend, this}; }
  std::uint64_t finish(int which) { return digester_[which].finish(chunk_[which]); }

 private:
  static void extend(void* self, std::size_t bytes) {
    auto& hashing = *static_cast<Hashing*>(self);
    for (int which = 0; which < 2 && !hashing.chunk_[which].empty(); ++which) {
      hashing.digester_[which].extend(hashing.chunk_[which].first(hashing.piece_ + bytes));
    }
  }
  Bytes chunk_[2];
  ChunkDigester digester_[2];
  std::size_t piece_ = 0;
};

DeltaRow raw_row(std::size_t bytes, std::uint64_t base, std::uint64_t result, std::uint64_t changed) {
  return {static_cast<std::uint64_t>(DeltaMode::kRaw), bytes, base, result, changed};
}

}  // namespace

void check_runs(std::span<const WordRun> runs, std::uint64_t nbytes) {
  std::uint64_t end = 0;
  for (const WordRun& run : runs) {
    if (run.format >= kWordFormatCount) {
      throw std::invalid_argument("a run of an unknown format of words");
    }
    if (run.end <= end || end % words_of(run).bytes != 0 || run.end % words_of(run).bytes != 0) {
      throw std::invalid_argument("runs that are not in order, or not of whole words");
    }
    end = run.end;
  }
  if (end != nbytes) {
    throw std::invalid_argument("runs that do not cover the arena");
  }
}

DeltaRow encode_chunk(Bytes base, Bytes next, std::uint64_t offset, std::span<const WordRun> runs, unsigned classes,
                      DeltaWorkspace& workspace, std::byte* out) {
  Hashing hashing(base, next);
  PieceEncoder encoder(workspace);
  std::uint64_t changed = 0;
  std::size_t used = 0;
  bool fits = true;
  each_piece(offset, base.size(), runs, [&](const Cut& cut) {
    hashing.begin_piece(cut.begin);
    encoder.look(base.data() + cut.begin, next.data() + cut.begin, (cut.end - cut.begin) / cut.words.bytes, cut.words,
                 classes, hashing.ahead());
    changed += encoder.changed();
    fits = fits && used + encoder.bytes() < base.size();
    if (fits) {
      used += static_cast<std::size_t>(encoder.write(next.data() + cut.begin, out + used) - (out + used));
    }
  });
  const std::uint64_t before = hashing.finish(0), after = hashing.finish(1);
  if (changed == 0) {
    return {static_cast<std::uint64_t>(DeltaMode::kSame), 0, before, after, 0};
  }
  if (!fits) {
    return raw_row(base.size(), before, after, changed);
  }
  return {static_cast<std::uint64_t>(DeltaMode::kSparse), used, before, after, changed};
}

void ChunkPatch::locate(Bytes base, std::uint64_t offset, std::span<const WordRun> runs, const DeltaRow& row,
                        Bytes body, DeltaWorkspace& workspace) {
  pieces_.clear();
  at_.clear();
  new_.clear();
  old_.clear();
  old_raw_.clear();
  base_digest_ = row.base_digest;
  result_digest_ = row.result_digest;
  Hashing hashing(base);
  const std::byte* at = body.data();
  const std::byte* const end = at + body.size();
  const auto take = [&](std::size_t begin, std::size_t bytes, const Words& words, const Located& located) {
    Piece piece{begin, bytes, words, at_.size(), at_.size() + located.count, located.raw, old_raw_.size()};
    if (located.raw != nullptr) {
      old_raw_.insert(old_raw_.end(), base.begin() + static_cast<std::ptrdiff_t>(begin),
                      base.begin() + static_cast<std::ptrdiff_t>(begin + bytes));
    }
    at_.insert(at_.end(), located.at, located.at + located.count);
    new_.insert(new_.end(), located.word, located.word + located.count);
    old_.resize(at_.size());
    for (std::size_t i = 0; i < located.count; ++i) {
      old_[piece.first + i] = load_word(base.data() + begin + located.at[i] * words.bytes, words.bytes);
    }
    pieces_.push_back(piece);
  };
  std::string broken;
  try {
    if (row.mode == static_cast<std::uint64_t>(DeltaMode::kRaw)) {
      if (body.size() != base.size()) {
        throw Malformed("a raw body of another length than the chunk");
      }
      take(0, base.size(), kWordFormats[0], {nullptr, nullptr, 0, body.data()});
    } else if (row.mode == static_cast<std::uint64_t>(DeltaMode::kSparse)) {
      each_piece(offset, base.size(), runs, [&](const Cut& cut) {
        hashing.begin_piece(cut.begin);
        const std::size_t elements = (cut.end - cut.begin) / cut.words.bytes;
        take(cut.begin, cut.end - cut.begin, cut.words,
             locate_piece(base.data() + cut.begin, elements, cut.words, at, end, workspace, hashing.ahead()));
      });
      if (at != end || (at_.empty() && old_raw_.empty())) {
        throw Malformed("bytes behind the last piece, or no change in a chunk that has some");
      }
    } else if (row.mode != static_cast<std::uint64_t>(DeltaMode::kSame) || !body.empty() ||
               row.base_digest != row.result_digest) {
      throw Malformed("an unknown mode of a chunk, or one that says that nothing changes and has changes");
    }
  } catch (const Malformed& malformed) {
    broken = malformed.what();
  }
  if (hashing.finish(0) != base_digest_) {  // told first: to another base, a sound body looks broken
    throw DeltaBroken{DeltaFault::kBase, "the chunk differs from the base that the delta was made for"};
  }
  if (!broken.empty()) {
    throw DeltaBroken{DeltaFault::kMalformed, broken};
  }
}

void ChunkPatch::encode_reverse(Bytes base, DeltaWorkspace& workspace) {
  std::vector<std::uint32_t> steps;
  PieceEncoder encoder(workspace);
  reverse_.clear();
  bool fits = true;
  std::uint64_t changed = 0;
  for (const Piece& piece : pieces_) {
    const auto count = static_cast<std::uint32_t>(piece.last - piece.first);
    changed += piece.raw != nullptr ? piece.bytes / piece.words.bytes : count;
    const std::size_t used = reverse_.size();
    if (piece.raw != nullptr) {
      fits = fits && used + 1 + piece.bytes < base.size();
      if (fits) {
        reverse_.push_back(static_cast<std::byte>(DeltaMode::kRaw));
        const auto from = old_raw_.begin() + static_cast<std::ptrdiff_t>(piece.kept);
        reverse_.insert(reverse_.end(), from, from + static_cast<std::ptrdiff_t>(piece.bytes));
      }
      continue;
    }
    steps.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      steps[i] = step_between(new_[piece.first + i], old_[piece.first + i], piece.words);
    }
    encoder.take(at_.data() + piece.first, steps.data(), count, piece.bytes / piece.words.bytes, piece.words);
    fits = fits && used + encoder.bytes() < base.size();
    if (fits) {
      reverse_.resize(used + encoder.bytes());
      (void)encoder.write(base.data() + piece.begin, reverse_.data() + used);
    }
  }
  if (changed == 0) {
    reverse_.clear();
    reverse_row_ = {static_cast<std::uint64_t>(DeltaMode::kSame), 0, result_digest_, base_digest_, 0};
    return;
  }
  if (!fits) {
    reverse_.assign(base.begin(), base.end());
    reverse_row_ = raw_row(base.size(), result_digest_, base_digest_, changed);
    return;
  }
  reverse_row_ = {static_cast<std::uint64_t>(DeltaMode::kSparse), reverse_.size(), result_digest_, base_digest_,
                  changed};
}

void ChunkPatch::write(std::span<std::byte> chunk) const {
  if (pieces_.empty()) {
    return;
  }
  put(chunk, new_, false);
  if (chunk_digest(chunk) != result_digest_) {
    restore(chunk);
    throw DeltaBroken{DeltaFault::kResult, "the changed chunk differs from the result's digest"};
  }
}

void ChunkPatch::restore(std::span<std::byte> chunk) const { put(chunk, old_, true); }

void ChunkPatch::put(std::span<std::byte> chunk, const std::vector<std::uint32_t>& words, bool old) const {
  for (const Piece& piece : pieces_) {
    std::byte* const at = chunk.data() + piece.begin;
    if (piece.raw != nullptr) {
      std::memcpy(at, old ? old_raw_.data() + piece.kept : piece.raw, piece.bytes);
      continue;
    }
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      store_word(at + at_[i] * piece.words.bytes, piece.words.bytes, words[i]);
    }
  }
}

std::size_t ChunkPatch::changed() const {
  std::size_t changed = at_.size();
  for (const Piece& piece : pieces_) {
    changed += piece.raw != nullptr ? piece.bytes / piece.words.bytes : 0;
  }
  return changed;
}

}  // namespace flashboot
