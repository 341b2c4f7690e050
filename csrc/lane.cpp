#include "lane.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace flashboot {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument(what);
  }
}

}  // namespace

Lane::Lane(std::shared_ptr<Marks> marks, std::size_t lane, std::span<std::byte> memory, Bytes digests)
    : marks_(std::move(marks)), lane_(lane), bounds_(marks_->bounds(lane)), memory_(memory), digests_(digests),
      verified_(marks_->verified(lane)), received_(marks_->received(lane)) {
  const std::uint64_t nbytes = marks_->nbytes();
  const auto whole = [nbytes](std::uint64_t offset) { return offset % kDigestChunk == 0 || offset == nbytes; };
  require(memory.size() == nbytes, "an arena of " + std::to_string(nbytes) + " bytes in a memory of " +
                                       std::to_string(memory.size()));
  require(digests.size() == chunk_count(nbytes, kDigestChunk) * sizeof(std::uint64_t),
          "a digest table of " + std::to_string(digests.size()) + " bytes for an arena of " + std::to_string(nbytes));
  require(whole(bounds_.start) && whole(bounds_.end), "lane " + std::to_string(lane) + " cuts a digest chunk");
  require(whole(verified_), "lane " + std::to_string(lane) + " is verified to " + std::to_string(verified_) +
                                ", inside a digest chunk");
}

std::uint64_t Lane::chunk_end(std::uint64_t offset) const noexcept {
  return std::min(bounds_.end, (offset / kDigestChunk + 1) * kDigestChunk);
}

bool Lane::landed(std::uint64_t bytes) {
  received_ += bytes;
  if (bytes != 0) {
    marks_->set_received(lane_, received_);
  }
  while (!done()) {
    const std::uint64_t end = chunk_end(verified_);
    const Bytes chunk = memory_.subspan(verified_, std::min(received_, end) - verified_);
    if (received_ < end) {
      digester_.extend(chunk);
      break;
    }
    if (digester_.finish(chunk) != wanted(verified_)) {
      differs();
      return false;
    }
    verified_chunk();
  }
  return true;
}

void Lane::verified_chunk() {
  verified_ = chunk_end(verified_);
  received_ = std::max(received_, verified_);
  marks_->set_verified(lane_, verified_);
}

void Lane::differs() {
  digester_.restart();
  received_ = verified_;
  marks_->add(Counter::kRefetched, 1);
  marks_->set_received(lane_, received_);
}

}  // namespace flashboot
