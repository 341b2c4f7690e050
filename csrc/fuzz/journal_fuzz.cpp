// Two ways through the journal of a window. Hostile: any bytes are refused and change nothing, or do what a plain
// reading of them says, inside of the memory. Torn: however far a window was written, its journal puts it back.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "delta_window.hpp"
#include "errors.hpp"
#include "require.hpp"

using namespace flashboot;

namespace {

using Data = std::vector<std::byte>;
constexpr std::size_t kMemory = 4096, kWindow = 8192;

// The first bytes of an input say what is tried.
struct Choice {
  std::uint8_t torn, formats, classes, unused;
  std::uint32_t cut;
};

// A number at the front of `rest`, which is taken off.
template <typename Number>
std::optional<Number> take(Bytes& rest) {
  if (rest.size() < sizeof(Number)) {
    return std::nullopt;
  }
  Number number;
  std::memcpy(&number, rest.data(), sizeof number);
  rest = rest.subspan(sizeof number);
  return number;
}

// Byte by byte into a copy; nothing: it is no journal of this memory.
std::optional<Data> plainly(Data memory, Bytes rest) {
  const auto put = [&](std::uint64_t at, std::byte value) {
    const bool inside = at < memory.size();
    if (inside) {
      memory[at] = value;
    }
    return inside;
  };
  while (!rest.empty()) {
    const auto offset = take<std::uint64_t>(rest);
    const auto word = take<std::uint32_t>(rest), count = take<std::uint32_t>(rest);
    if (!count || (*word != 0 && *word != 1 && *word != 2 && *word != 4) || *offset > memory.size()) {
      return std::nullopt;
    }
    for (std::uint32_t i = 0; i < *count; ++i) {
      if (*word == 0) {
        const auto value = take<std::byte>(rest);
        if (!value || !put(*offset + i, *value)) {
          return std::nullopt;
        }
        continue;
      }
      const auto at = take<std::uint32_t>(rest), value = take<std::uint32_t>(rest);
      for (std::uint32_t byte = 0; byte < *word; ++byte) {
        const std::uint64_t place = *offset + std::uint64_t{at.value_or(0)} * *word + byte;
        if (!value || !put(place, static_cast<std::byte>(*value >> 8 * byte))) {
          return std::nullopt;
        }
      }
    }
  }
  return memory;
}

void hostile(Bytes journal) {
  Data memory(kMemory);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<std::byte>(i * 7);
  }
  const Data before = memory;
  const std::optional<Data> wanted = plainly(before, journal);
  try {
    put_back(memory, journal);
    require(wanted.has_value(), "a journal that is none was taken");
    require(memory == *wanted, "other bytes than the journal says");
  } catch (const Malformed&) {
    require(!wanted.has_value(), "a journal was refused");
    require(memory == before, "a journal that was refused changed something");
  }
}

void torn(const Choice& choice, Bytes bytes) {
  const std::size_t half = std::min(bytes.size() / 8 * 4, kWindow);
  if (half < 8) {
    return;
  }
  const Bytes base = bytes.first(half), next = bytes.subspan(half, half);
  const std::uint64_t first = choice.formats % kWordFormatCount, second = choice.formats / kWordFormatCount;
  const std::vector<WordRun> runs{{half / 8 * 4, first}, {half, second % kWordFormatCount}};
  static Data out(kDigestChunk);
  const auto rows = encode_window(base, next, 0, runs, choice.classes % kMostClasses + 1U, 1, out.data());
  const bool raw = rows[0].mode == static_cast<std::uint64_t>(DeltaMode::kRaw);
  const Bytes body = raw ? next : Bytes(out).first(rows[0].bytes);
  const DeltaWindow window(base, 0, runs, rows, body, false, 1);
  const Data journal = window.journal();
  Data memory(base.begin(), base.end());
  const std::size_t cut = choice.cut % (half + 1);
  std::copy_n(next.begin(), cut, memory.begin());
  put_back(memory, journal);
  require(std::ranges::equal(memory, base), "a torn window was not put back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Choice choice;
  if (size < sizeof choice) {
    return -1;  // not worth keeping
  }
  std::memcpy(&choice, data, sizeof choice);
  const auto rest = std::as_bytes(std::span(data, size)).subspan(sizeof choice);
  if (choice.torn % 2 != 0) {
    torn(choice, rest);
  } else {
    hostile(rest);
  }
  return 0;
}
