// Two ways through the codec. Hostile: any bytes as the body of a chunk are refused, or give places inside of the chunk,
// and the chunk stays as it was. Round trip: any base and any result come back, and so does the base by the reverse delta.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "delta_window.hpp"
#include "require.hpp"

using namespace flashboot;

namespace {

using Data = std::vector<std::byte>;

// The first bytes of an input say what is tried.
struct Choice {
  std::uint8_t hostile, format, classes, kernel;
};
constexpr std::size_t kChunk = 16384;

DeltaWorkspace& workspace_of(const Choice& choice) {
  static DeltaWorkspace workspace;
  workspace.kernel = choice.kernel % 2 == 0 ? &best_delta_kernel() : &kScalarKernel;
  return workspace;
}

std::array<WordRun, 2> runs_of(const Choice& choice, std::size_t bytes) {
  const std::size_t middle = bytes / 8 * 4;
  const std::uint64_t first = choice.format % kWordFormatCount, second = choice.format / kWordFormatCount;
  return {WordRun{middle, first}, WordRun{bytes, second % kWordFormatCount}};
}

void hostile(const Choice& choice, std::span<const std::byte> body) {
  Data base(kChunk);
  for (std::size_t i = 0; i < base.size(); ++i) {
    base[i] = static_cast<std::byte>(i * (i >> 7) * 31);
  }
  const Data before = base;
  const DeltaRow row{choice.classes % 3U, body.size(), chunk_digest(base), 1, 0};
  ChunkPatch patch;
  try {
    const auto runs = runs_of(choice, base.size());
    patch.locate(base, 0, runs, row, body, workspace_of(choice));
    patch.encode_reverse(base, workspace_of(choice));
    patch.write(base);
    require(false, "a wrong result");
  } catch (const DeltaBroken&) {
    require(base == before, "a chunk that was refused has changed");
  }
}

void round_trip(const Choice& choice, std::span<const std::byte> bytes) {
  const std::size_t half = std::min(bytes.size() / 8 * 4, kChunk);
  if (half < 8) {
    return;
  }
  const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(half);
  const Data base(bytes.begin(), middle), next(middle, middle + static_cast<std::ptrdiff_t>(half));
  const auto runs = runs_of(choice, half);
  Data out(half);
  DeltaWorkspace& workspace = workspace_of(choice);
  const DeltaRow row = encode_chunk(base, next, 0, runs, choice.classes % kMostClasses + 1, workspace, out.data());
  out.resize(row.bytes);
  const Data& body = row.mode == static_cast<std::uint64_t>(DeltaMode::kRaw) ? next : out;
  ChunkPatch patch, back;
  Data target = base;
  try {
    patch.locate(base, 0, runs, row, body, workspace);
    patch.encode_reverse(base, workspace);
    patch.write(target);
    require(target == next, "another result");
    back.locate(target, 0, runs, patch.reverse_row(), patch.reverse(), workspace);
    back.write(target);
  } catch (const DeltaBroken& broken) {
    require(false, broken.what.c_str());
  }
  require(target == base, "the reverse delta gives another base");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Choice choice;
  if (size < sizeof choice) {
    return -1;  // not worth keeping
  }
  std::memcpy(&choice, data, sizeof choice);
  const auto rest = std::as_bytes(std::span(data, size)).subspan(sizeof choice);
  if (choice.hostile % 2 != 0) {
    hostile(choice, rest);
  } else {
    round_trip(choice, rest);
  }
  return 0;
}
