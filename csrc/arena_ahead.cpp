#include "arena_ahead.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "errors.hpp"
#include "layout_document.hpp"

namespace flashboot {
namespace {

// Bytes of the file; none when it can't be told.
std::optional<std::uint64_t> size_of(int descriptor) {
  struct stat facts{};
  return fstat(descriptor, &facts) == 0 ? std::optional(static_cast<std::uint64_t>(facts.st_size)) : std::nullopt;
}

// The whole file; none when it is too long, or shorter than it says.
std::optional<std::string> read_all(int descriptor) {
  const auto size = size_of(descriptor);
  if (!size || *size > kLayoutMostDocument) {
    return std::nullopt;
  }
  std::string text(*size, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = pread(descriptor, text.data() + have, text.size() - have, static_cast<off_t>(have));
    if (got == 0 || (got < 0 && errno != EINTR)) {
      return std::nullopt;
    }
    have += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return text;
}

}  // namespace

bool ArenaAhead::take(std::string_view packet, const std::vector<int>& descriptors, std::string_view identity) {
  const auto offer = read_offer(packet);
  if (!offer || descriptors.size() != 2) {
    return false;
  }
  auto document = read_all(descriptors[1]);
  if (!document || document_digest(std::as_bytes(std::span(*document))) != offer->layout_digest ||
      !take(*offer, descriptors[0], std::move(*document), identity)) {
    return false;
  }
  for (const int descriptor : descriptors) {
    (void)::close(descriptor);
  }
  return true;
}

bool ArenaAhead::take(const AgentOffer& offer, int arena, std::string document, std::string_view identity) {
  close();
  offer_ = offer;
  document_ = std::move(document);
  const auto held = size_of(arena);
  if (held && *held >= offer.bytes && fits(identity) && *held >= table_->arena_bytes() && table_->all_in_place()) {
    arena_ = fcntl(arena, F_DUPFD_CLOEXEC, 0);
  }
  if (arena_ < 0) {
    close();
    return false;
  }
  names_ = table_->full_names();
  return true;
}

bool ArenaAhead::fits(std::string_view identity) {
  try {
    const LayoutDocument parts(std::as_bytes(std::span(document_)));
    const auto bytes = plain_arena_bytes(parts.head, identity);
    table_ = bytes ? std::make_unique<LayoutTable>(parts.tables, std::vector{*bytes}, 1) : nullptr;
  } catch (const Malformed&) {
    table_ = nullptr;
  }
  return table_ != nullptr;
}

int ArenaAhead::hand_over() noexcept { return std::exchange(arena_, -1); }

bool ArenaAhead::make(const std::string& library, const std::atomic<bool>& stop) {
  if (table_ == nullptr) {
    throw std::runtime_error("nothing was taken");
  }
  if (!wait_for_library(library, stop)) {
    return false;
  }
  tensors_ = std::make_unique<TorchArena>(library, *table_, arena_);
  return true;
}

void ArenaAhead::close() noexcept {
  document_ = {};
  if (arena_ >= 0) {
    (void)::close(std::exchange(arena_, -1));
  }
}

}  // namespace flashboot
