// All of attaching to an arena of plain tensors that needs no Python: its document is read and checked, its tensors and
// what their names need are made, by a thread and while the process still imports torch.
//
// What always holds: an arena is taken only when its document is the one that the agent spoke of, sound, with the
// reader's own identity and nothing beside plain tensors in its head, all over the arena's own bytes. Of any other this
// says nothing, and Python reads it and says what is wrong.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent_offer.hpp"
#include "layout_table.hpp"
#include "torch_arena.hpp"

namespace flashboot {

class ArenaAhead {
 public:
  ArenaAhead() = default;
  ~ArenaAhead() { close(); }
  ArenaAhead(const ArenaAhead&) = delete;
  ArenaAhead& operator=(const ArenaAhead&) = delete;
  ArenaAhead(ArenaAhead&&) = delete;
  ArenaAhead& operator=(ArenaAhead&&) = delete;

  // The agent's answer; `identity`: the reader's, in canonical JSON. True: it is taken, and so are the descriptors; else
  // they stay the caller's.
  [[nodiscard]] bool take(std::string_view packet, const std::vector<int>& descriptors, std::string_view identity);
  // The same for an arena whose offer and document were read and compared already; a copy of the descriptor is kept.
  [[nodiscard]] bool take(const AgentOffer& offer, int arena, std::string document, std::string_view identity);

  // Of what was taken.
  [[nodiscard]] const AgentOffer& offer() const noexcept { return offer_; }
  [[nodiscard]] const std::string& document() const noexcept { return document_; }
  [[nodiscard]] const LayoutTable& table() const noexcept { return *table_; }
  [[nodiscard]] const LayoutTable::Names& names() const noexcept { return names_; }
  // The arena's descriptor, the caller's from now on; -1 when it is gone.
  [[nodiscard]] int hand_over() noexcept;

  // Waits for torch's library, then makes the tensors. False once `stop` is set. Raises std::runtime_error.
  [[nodiscard]] bool make(const std::string& library, const std::atomic<bool>& stop);
  // None when they were not made, or were taken.
  [[nodiscard]] std::unique_ptr<TorchArena> tensors() noexcept { return std::move(tensors_); }

  // Lets go of the document and the arena's descriptor.
  void close() noexcept;

 private:
  [[nodiscard]] bool fits(std::string_view identity);

  AgentOffer offer_{};
  std::string document_;
  int arena_ = -1;
  std::unique_ptr<LayoutTable> table_;
  LayoutTable::Names names_;
  std::unique_ptr<TorchArena> tensors_;
};

}  // namespace flashboot
