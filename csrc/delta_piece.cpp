#include "delta_piece.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "errors.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kStep = kLeafBytes;  // bytes between two calls of Ahead: they stay in the first cache
constexpr std::size_t kSamples = 4096;     // elements that choose the top exponent
constexpr std::size_t kProbes = 16, kProbe = 64;

// Two percent of the elements are at or above it.
std::uint8_t choose_top(const std::byte* base, std::size_t elements, const Words& words) {
  std::uint32_t seen[256] = {};
  std::uint32_t all = 0;
  for (std::size_t i = 0; i < elements; i += std::max<std::size_t>(1, elements / kSamples)) {
    seen[exponent_of(load_word(base + i * words.bytes, words.bytes), words)] += 1;
    all += 1;
  }
  std::uint32_t above = 0;
  for (unsigned exponent = 255; exponent > 0; --exponent) {
    above += seen[exponent];
    if (above * 50 > all) {
      return static_cast<std::uint8_t>(exponent);
    }
  }
  return 0;
}

// Whether coding is likely to save a quarter, by blocks from all over the piece.
bool worth_it(const std::byte* base, const std::byte* next, std::size_t elements, const Words& words) {
  if (elements < kSamples) {
    return true;
  }
  std::uint64_t bits = kProbes * kProbe;  // where the changes are takes at most a bit per element
  for (std::size_t probe = 0; probe < kProbes; ++probe) {
    const std::size_t first = probe * (elements - kProbe) / (kProbes - 1);
    for (std::size_t i = first; i < first + kProbe; ++i) {
      const std::uint32_t from = load_word(base + i * words.bytes, words.bytes);
      const std::uint32_t to = load_word(next + i * words.bytes, words.bytes);
      bits += from == to ? 0 : 1 + static_cast<unsigned>(std::bit_width(step_between(from, to, words)));
    }
  }
  return bits * 4 < std::uint64_t{3} * kProbes * kProbe * 8 * words.bytes;
}

}  // namespace

void PieceEncoder::look(const std::byte* base, const std::byte* next, std::size_t elements, const Words& words,
                        unsigned classes, const Ahead& ahead) {
  raw_bytes_ = elements * words.bytes;
  if (!worth_it(base, next, elements, words)) {
    mode_ = DeltaMode::kRaw;
    bytes_ = 1 + raw_bytes_;
    changed_ = static_cast<std::uint32_t>(elements);
    return;
  }
  classes_ = words.mask == 0 ? 1 : classes;
  top_ = classes_ == 1 ? 0 : choose_top(base, elements, words);
  Scan scan{};
  scan.classes = {words, static_cast<std::uint8_t>(classes_), top_};
  scan.gap = space_.found.get();
  scan.step = scan.gap + kMostElements;
  scan.in_class = space_.in_class.get();
  for (std::size_t first = 0; first < elements; first += kStep / words.bytes) {
    const std::size_t last = std::min(elements, first + kStep / words.bytes);
    ahead(last * words.bytes);
    space_.kernel->scan(scan, base, next, first, last);
  }
  changed_ = static_cast<std::uint32_t>(scan.count);
  std::uint32_t place[kMostClasses], total = 0;
  for (unsigned c = 0; c < classes_; ++c) {
    place[c] = total;
    code_[c].count = scan.changed[c];
    total += scan.changed[c];
  }
  std::uint32_t* const gap = space_.sorted.get();
  std::uint32_t* const step = gap + kMostElements;
  for (std::size_t i = 0; i < scan.count; ++i) {
    const std::uint32_t to = place[scan.in_class[i]]++;
    gap[to] = scan.gap[i];
    step[to] = scan.step[i];
  }
  settle(raw_bytes_);
}

void PieceEncoder::take(const std::uint32_t* at, const std::uint32_t* step, std::uint32_t count, std::size_t elements,
                        const Words& words) {
  raw_bytes_ = elements * words.bytes;
  classes_ = 1;
  top_ = 0;
  changed_ = code_[0].count = count;
  std::uint32_t* const gap = space_.sorted.get();
  for (std::uint32_t i = 0, since = 0; i < count; ++i) {
    gap[i] = at[i] - since;
    since = at[i] + 1;
  }
  std::copy_n(step, count, gap + kMostElements);
  settle(raw_bytes_);
}

void PieceEncoder::settle(std::size_t raw_bytes) {
  if (changed_ == 0) {
    mode_ = DeltaMode::kSame;
    bytes_ = 1;
    return;
  }
  const std::uint32_t* gap = space_.sorted.get();
  std::uint64_t bits = 0;
  bytes_ = 3;  // mode, classes, top
  for (unsigned c = 0; c < classes_; ++c) {
    const std::uint32_t count = code_[c].count;
    code_[c] = choose_code({gap, gap + kMostElements, count}, space_.found.get());
    bits += code_[c].bits;
    bytes_ += head_bytes(code_[c]);
    gap += count;
  }
  bytes_ += (bits + 7) / 8;
  mode_ = bytes_ < 1 + raw_bytes ? DeltaMode::kSparse : DeltaMode::kRaw;
  bytes_ = mode_ == DeltaMode::kSparse ? bytes_ : 1 + raw_bytes;
}

std::byte* PieceEncoder::write(const std::byte* next, std::byte* out) const {
  *out++ = static_cast<std::byte>(mode_);
  if (mode_ == DeltaMode::kRaw) {
    std::memcpy(out, next, raw_bytes_);
    return out + raw_bytes_;
  }
  if (mode_ == DeltaMode::kSame) {
    return out;
  }
  *out++ = static_cast<std::byte>(classes_);
  *out++ = static_cast<std::byte>(top_);
  for (unsigned c = 0; c < classes_; ++c) {
    out = write_head(code_[c], out);
  }
  BitWriter bits(out);
  const std::uint32_t* gap = space_.sorted.get();
  for (unsigned c = 0; c < classes_; ++c) {
    write_changes(code_[c], {gap, gap + kMostElements, code_[c].count}, bits);
    gap += code_[c].count;
  }
  return bits.finish();
}

namespace {

std::uint8_t take_byte(const std::byte*& at, const std::byte* end) {
  if (at == end) {
    throw Malformed("it ends where a piece begins");
  }
  return static_cast<std::uint8_t>(*at++);
}

// One class: its ranks are the places.
std::size_t add_up(const std::byte* base, const Locate& locate, std::uint32_t count, std::size_t elements) {
  std::size_t place = 0;
  for (std::uint32_t i = 0; i < count; ++i, ++place) {
    place += locate.gap[i];
    if (place >= elements) {
      throw Malformed("a change beyond the piece");
    }
    locate.at[i] = static_cast<std::uint32_t>(place);
    const std::uint32_t word = load_word(base + place * locate.classes.words.bytes, locate.classes.words.bytes);
    locate.word[i] = stepped(word, locate.step[i], locate.classes.words);
  }
  return count;
}

}  // namespace

Located locate_piece(const std::byte* base, std::size_t elements, const Words& words, const std::byte*& at,
                     const std::byte* end, DeltaWorkspace& workspace, const Ahead& ahead) {
  const std::uint8_t mode = take_byte(at, end);
  if (mode == static_cast<std::uint8_t>(DeltaMode::kSame)) {
    return {nullptr, nullptr, 0, nullptr};
  }
  if (mode == static_cast<std::uint8_t>(DeltaMode::kRaw)) {
    const std::byte* raw = at;
    if (static_cast<std::size_t>(end - at) < elements * words.bytes) {
      throw Malformed("it ends inside the bytes of a piece");
    }
    at += elements * words.bytes;
    return {nullptr, nullptr, 0, raw};
  }
  if (mode != static_cast<std::uint8_t>(DeltaMode::kSparse)) {
    throw Malformed("an unknown mode of a piece");
  }
  Locate locate{};
  const unsigned classes = take_byte(at, end);
  locate.classes = {words, static_cast<std::uint8_t>(classes), take_byte(at, end)};
  if (classes == 0 || classes > kMostClasses || (words.mask == 0 && classes != 1) ||
      (classes == 1 && locate.classes.top != 0)) {
    throw Malformed("classes that this format of words does not have");
  }
  ClassCode code[kMostClasses];
  std::uint32_t total = 0;
  for (unsigned c = 0; c < classes; ++c) {
    code[c] = read_head(at, end, static_cast<std::uint32_t>(elements) - total);
    total += code[c].count;
  }
  if (total == 0) {
    throw Malformed("no change in a piece that has some");
  }
  std::uint32_t* const gap = workspace.sorted.get();
  std::uint32_t* const step = gap + kMostElements;
  BitReader bits(at, end);
  std::uint32_t done = 0;
  for (unsigned c = 0; c < classes; ++c) {
    read_changes(code[c], gap + done, step + done, static_cast<std::uint32_t>(elements), word_mask(words) - 1, bits);
    locate.next[c] = done;
    locate.end[c] = done += code[c].count;
  }
  std::uint64_t rest;
  at = bits.finish(rest);
  if (rest != 0) {
    throw Malformed("bits behind the last change");
  }
  locate.gap = gap;
  locate.step = step;
  locate.at = workspace.found.get();
  locate.word = locate.at + kMostElements;
  if (classes == 1) {
    ahead(elements * words.bytes);
    locate.count = add_up(base, locate, total, elements);
  } else {
    for (unsigned c = 0; c < kMostClasses; ++c) {
      locate.left[c] = c < classes && code[c].count != 0 ? static_cast<std::int32_t>(gap[locate.next[c]]) : kNever;
    }
    for (std::size_t first = 0; first < elements; first += kStep / words.bytes) {
      const std::size_t last = std::min(elements, first + kStep / words.bytes);
      ahead(last * words.bytes);
      workspace.kernel->locate(locate, base, first, last);
    }
  }
  if (locate.count != total) {
    throw Malformed("changes beyond the elements of their class");
  }
  return {locate.at, locate.word, locate.count, nullptr};
}

}  // namespace flashboot
