// What a node's agent says to an engine that asks for an arena (wire/attach.py), as far as it is the common answer: the
// arena is sealed, here are its bytes and its layout.
//
// What always holds: whatever is read here, engine/messages.py reads the same; of all else nothing is said here, and
// Python judges it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashboot {

struct AgentOffer {
  std::string arena;
  std::uint64_t bytes;
  std::string digest;
  std::string layout_digest;
};

[[nodiscard]] std::optional<AgentOffer> read_offer(std::string_view packet);

}  // namespace flashboot
