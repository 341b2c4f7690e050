#include "agent_offer.hpp"

#include "errors.hpp"
#include "json.hpp"

namespace flashboot {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

}  // namespace

std::optional<AgentOffer> read_offer(std::string_view packet) {
  AgentOffer offer{};
  std::string type;
  std::string identity;
  bool sound = true;
  int fields = 0;
  try {
    JsonReader json(packet, "an agent's message");
    json.object([&](std::string_view key) {
      ++fields;
      std::string* const text = key == "type"           ? &type
                                : key == "arena"        ? &offer.arena
                                : key == "identity"     ? &identity
                                : key == "digest"       ? &offer.digest
                                : key == "layoutDigest" ? &offer.layout_digest
                                                        : nullptr;
      if (text != nullptr && json.peek() == '"') {
        *text = json.string();
        sound = sound && !json.had_escapes();
      } else if (key == "bytes" && json.peek() >= '0' && json.peek() <= '9') {
        const auto number = json.number();
        sound = sound && number && *number <= kMostBytes;
        offer.bytes = number.value_or(0);
      } else {
        sound = false;
        json.skip();
      }
    });
    json.end();
  } catch (const Malformed&) {
    return std::nullopt;
  }
  return sound && fields == 6 && type == "ready" ? std::optional(std::move(offer)) : std::nullopt;
}

}  // namespace flashboot
