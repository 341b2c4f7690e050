// Any bytes are a sound header, whose tensors fill the file exactly, or a refusal in words of ASCII; a name that is put
// into an index with its header is found there.
#include "safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint.hpp"
#include "errors.hpp"
#include "require.hpp"
#include "utf8.hpp"

namespace {

using namespace flashboot;

void require_message(const std::string& message) {
  require(!message.empty() && message.size() < 1000, "a message that says nothing, or too much");
  require(std::ranges::all_of(message, [](char c) { return c >= ' ' && c < 0x7f; }), "a message that does not print");
}

void require_sound(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::uint64_t end = 0;
  for (const Tensor& tensor : header.tensors()) {
    require(tensor.begin == end && tensor.end >= end, "a gap or an overlap");
    end = tensor.end;
    unsigned __int128 bits = kDtypes[tensor.dtype].bits;
    for (const std::uint64_t size : header.shape(tensor)) {
      bits *= size;  // below 2^64 before each step, as the last require says
      require(bits >> 64 == 0, "a shape beyond 64 bits");
    }
    require(bits == static_cast<unsigned __int128>(tensor.end - tensor.begin) * 8, "a shape of another size");
    require(!first_not_utf8(header.name(tensor)), "a name that is no text");
  }
  require(header.data_start() + end == file_bytes, "the tensors do not end with the file");
}

void try_index(std::string_view text, const std::shared_ptr<const SafetensorsHeader>& header) {
  try {
    const WeightMap map(text);
    require(!map.files().empty() && std::ranges::is_sorted(map.files()), "an index without files, or unsorted ones");
    for (std::size_t i = 0; i < map.files().size(); ++i) {
      const std::string_view file = map.files()[i];
      require(!file.empty() && file.front() != '/' && ("/" + std::string(file) + "/").find("/../") == std::string::npos,
              "a file outside the folder");
      if (header) {
        (void)map.absent(i, *header);
      }
    }
  } catch (const Malformed& error) {
    require_message(error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return -1;  // not worth keeping
  }
  const std::uint64_t data_bytes = data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::uint64_t file_bytes = 8 + text.size() + data_bytes;
  std::shared_ptr<const SafetensorsHeader> header;
  try {
    header = std::make_shared<const SafetensorsHeader>(text, file_bytes);
    require_sound(*header, file_bytes);
    const CheckpointLayout twin({header, header});
    require(twin.twice().has_value() == !header->tensors().empty(), "a file beside itself has every name twice");
    require(twin.extents().size() % 2 == 0 && twin.nbytes() >= 2 * data_bytes, "not every tensor is laid out");
  } catch (const Malformed& error) {
    require_message(error.what());
  } catch (const Truncated& error) {
    require_message(error.what());
  }
  try_index(text, header);
  return 0;
}
