#include "checkpoint.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "errors.hpp"
#include "json.hpp"
#include "utf8.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kMostOfPart = 255;  // bytes; what file systems can have
constexpr std::size_t kMostOfPath = 4095;

constexpr std::uint64_t aligned(std::uint64_t offset) noexcept {
  return (offset + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// A plain relative path without detours; none when it leaves the folder or no file system can have it.
std::optional<std::string> inside(std::string_view path) {
  if (path.starts_with('/') || path.size() > kMostOfPath || path.find('\0') != std::string_view::npos ||
      first_not_utf8(path)) {  // half a surrogate pair, which JSON allows
    return std::nullopt;
  }
  std::string result;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part == ".." || part.size() > kMostOfPart) {
      return std::nullopt;
    }
    if (!part.empty() && part != ".") {
      result.append(result.empty() ? "" : "/").append(part);
    }
    begin = end + 1;
  }
  return result.empty() ? std::nullopt : std::optional(result);
}

}  // namespace

class WeightMap::Parser {
 public:
  Parser(WeightMap& map, std::string_view text) : map_(map), json_(text, "the index") {}

  void run() {
    const auto begin = json_.mark();
    if (json_.peek() != '{') {
      json_.skip();
      json_.end();
      throw Malformed("the index is " + shown(json_.since(begin)) + ", not a JSON object");
    }
    json_.object([&](std::string_view key) { key == "weight_map" && json_.peek() == '{' ? places() : json_.skip(); });
    json_.end();
    if (const auto twice = map_.names_.seal()) {
      json_.twice(map_.names_[*twice]);
    }
    if (!fault_.empty()) {
      throw Malformed(fault_);
    }
    if (map_.names_.size() == 0) {
      throw Malformed("weight_map must be an object of tensor -> file, and not be empty");
    }
    number();
  }

 private:
  void places() {
    json_.enter('{');
    for (bool first = true; json_.another('}', first); first = false) {
      map_.names_.add(json_.key());
      place();
    }
  }

  void place() {
    const auto begin = json_.mark();
    std::optional<std::string> file;
    std::string shows;
    if (json_.peek() == '"') {
      const std::string_view written = json_.string();
      if (known_ != files_.end() && written == known_->first) {  // as for most tensors
        return file_of_.push_back(known_->second);
      }
      file = inside(written);
      shows = file ? "" : quoted(written);
    } else {
      json_.skip();
      shows = shown(json_.since(begin));
    }
    if (file) {
      known_ = files_.try_emplace(*file, static_cast<std::uint32_t>(files_.size())).first;
      file_of_.push_back(known_->second);
    } else if (fault_.empty()) {
      fault_ = "tensor " + quoted(map_.names_[map_.names_.size() - 1]) + " is placed in " + shows +
               ", no file name inside the folder";
    }
  }

  // Files get the numbers of their order.
  void number() {
    std::vector<std::uint32_t> sorted(files_.size());
    for (const auto& [file, number] : files_) {
      sorted[number] = static_cast<std::uint32_t>(map_.files_.size());
      map_.files_.push_back(file);
    }
    map_.placed_.resize(files_.size());
    for (const NameTable::Slot& slot : map_.names_.sorted()) {
      map_.placed_[sorted[file_of_[slot.name]]].push_back(slot);
    }
  }

  WeightMap& map_;
  JsonReader json_;
  std::map<std::string, std::uint32_t, std::less<>> files_;
  std::map<std::string, std::uint32_t, std::less<>>::iterator known_ = files_.end();
  std::vector<std::uint32_t> file_of_;  // by the names' numbers; files are numbered as they come
  std::string fault_;
};

WeightMap::WeightMap(std::string_view text) : names_(text.size()) { Parser(*this, text).run(); }

std::optional<std::string> WeightMap::absent(std::size_t file, const SafetensorsHeader& header) const {
  const NameTable& there = header.names();
  auto at = there.sorted().begin();
  std::optional<std::string_view> first;
  for (const NameTable::Slot& slot : placed_.at(file)) {
    int order = 1;
    while (at != there.sorted().end() && (order = there.compare(*at, names_, slot)) < 0) {
      ++at;
    }
    const std::string_view name = names_[slot.name];
    if ((at == there.sorted().end() || order > 0) && (!first || name < *first)) {
      first = name;
    }
  }
  return first ? std::optional(quoted(*first)) : std::nullopt;
}

CheckpointLayout::CheckpointLayout(Headers headers) : headers_(std::move(headers)) {
  each([this](const Placed& placed) {
    nbytes_ = aligned(placed.memory_offset + placed.length());
    ++count_;
    return true;
  });
}

void CheckpointLayout::each(const std::function<bool(const Placed&)>& see) const {
  std::uint64_t offset = 0;
  for (std::size_t file = 0; file < headers_.size(); ++file) {
    for (const Tensor& tensor : headers_[file]->tensors()) {
      const Placed placed{&tensor, file, offset};
      if (!see(placed)) {
        return;
      }
      offset = aligned(offset + placed.length());
    }
  }
}

std::vector<Extent> CheckpointLayout::extents() const {
  std::vector<Extent> extents;
  extents.reserve(count_);
  each([&](const Placed& placed) {
    if (placed.length() != 0) {
      const std::uint64_t start = headers_[placed.file]->data_start();
      extents.push_back({placed.file, start + placed.tensor->begin, placed.memory_offset, placed.length()});
    }
    return true;
  });
  return extents;
}

std::optional<CheckpointLayout::Twice> CheckpointLayout::twice() const {
  struct Seen {
    NameTable::Slot slot;
    std::uint32_t file;
  };
  const auto names = [this](const Seen& seen) -> const NameTable& { return headers_[seen.file]->names(); };
  const auto before = [&](const Seen& one, const Seen& other) {
    return names(one).compare(one.slot, names(other), other.slot) < 0;
  };
  std::vector<Seen> all;
  all.reserve(count_);
  for (std::uint32_t file = 0; file < headers_.size(); ++file) {
    for (const NameTable::Slot& slot : headers_[file]->names().sorted()) {
      all.push_back({slot, file});
    }
  }
  std::ranges::stable_sort(all, before);  // so that of equal names the one of the first file comes first
  const auto found =
      std::ranges::adjacent_find(all, [&](const Seen& one, const Seen& other) { return !before(one, other); });
  if (found == all.end()) {
    return std::nullopt;
  }
  return Twice{quoted(names(*found)[found->slot.name]), found->file, std::next(found)->file};
}

}  // namespace flashboot
