// The words of a chunk as they were, in a form that can be put back however much of the chunk was written since.
#include <algorithm>
#include <cstring>

#include "delta_chunk.hpp"
#include "errors.hpp"

namespace flashboot {
namespace {

// What a journal has before each piece: 8 bytes per change (element, old word) follow, or the old bytes of a raw one.
struct JournalHead {
  std::uint64_t offset;  // of the piece in the arena
  std::uint32_t word;    // bytes; 0: raw
  std::uint32_t count;   // changes, or bytes
};

template <typename Value>
void append(std::vector<std::byte>& out, const Value& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

// Calls `each(head, entries)` for all pieces of a journal.
template <typename Each>
void each_entry(Bytes journal, const Each& each) {
  while (!journal.empty()) {
    JournalHead head;
    if (journal.size() < sizeof head) {
      throw Malformed("a journal that ends inside an entry");
    }
    std::memcpy(&head, journal.data(), sizeof head);
    journal = journal.subspan(sizeof head);
    const std::size_t bytes = std::size_t{head.count} * (head.word == 0 ? 1 : 8);
    if (bytes > journal.size() || (head.word != 0 && head.word != 1 && head.word != 2 && head.word != 4)) {
      throw Malformed("a journal that ends inside an entry, or of unknown words");
    }
    each(head, journal.first(bytes));
    journal = journal.subspan(bytes);
  }
}

struct JournalWord {
  std::uint32_t at, word;
};

JournalWord journal_word(Bytes entries, std::size_t i) {
  JournalWord word;
  std::memcpy(&word, entries.data() + i * sizeof word, sizeof word);
  return word;
}

}  // namespace

void ChunkPatch::journal(std::uint64_t offset, std::vector<std::byte>& out) const {
  for (const Piece& piece : pieces_) {
    if (piece.raw != nullptr) {
      append(out, JournalHead{offset + piece.begin, 0, static_cast<std::uint32_t>(piece.bytes)});
      const auto from = old_raw_.begin() + static_cast<std::ptrdiff_t>(piece.kept);
      out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(piece.bytes));
      continue;
    }
    const auto count = static_cast<std::uint32_t>(piece.last - piece.first);
    append(out, JournalHead{offset + piece.begin, piece.words.bytes, count});
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      append(out, JournalWord{at_[i], old_[i]});
    }
  }
}

void put_back(std::span<std::byte> arena, Bytes journal) {
  each_entry(journal, [&](const JournalHead& head, Bytes entries) {
    bool inside = head.offset <= arena.size();
    const std::uint64_t room = inside ? arena.size() - head.offset : 0;
    inside = inside && (head.word != 0 || head.count <= room);
    for (std::size_t i = 0; head.word != 0 && i < head.count; ++i) {
      inside = inside && (std::uint64_t{journal_word(entries, i).at} + 1) * head.word <= room;
    }
    if (!inside) {
      throw Malformed("a journal of another arena: it leaves this one");
    }
  });
  each_entry(journal, [&](const JournalHead& head, Bytes entries) {
    std::byte* const at = arena.data() + head.offset;
    if (head.word == 0) {
      std::ranges::copy(entries, at);
    }
    for (std::size_t i = 0; head.word != 0 && i < head.count; ++i) {
      const JournalWord word = journal_word(entries, i);
      store_word(at + std::size_t{word.at} * head.word, head.word, word.word);
    }
  });
}

}  // namespace flashboot
