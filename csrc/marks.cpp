#include "marks.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "errors.hpp"

namespace flashboot {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kFirstWord = 64;  // bytes into the page
constexpr std::size_t kWords = (kPage - kFirstWord) / sizeof(std::uint64_t);
constexpr std::size_t kLaneWords = 8;  // where those of lane 1 begin
constexpr std::size_t kVerified = 0;
constexpr std::size_t kReceived = 1;

constexpr std::size_t word_of(std::size_t lane, std::size_t which) {
  return lane == 0 ? which : kLaneWords + 2 * (lane - 1) + which;
}

std::string range(Bounds bounds) {
  return "[" + std::to_string(bounds.start) + ", " + std::to_string(bounds.end) + ")";
}

void check_lanes(std::uint64_t nbytes, const std::vector<Bounds>& lanes) {
  std::uint64_t at = 0;
  for (const Bounds& lane : lanes) {
    if (lane.start != at || lane.end <= lane.start) {
      throw std::invalid_argument("lane " + range(lane) + " does not follow on byte " + std::to_string(at));
    }
    at = lane.end;
  }
  if (at != nbytes || nbytes == 0) {
    throw std::invalid_argument("the lanes end at byte " + std::to_string(at) + " of " + std::to_string(nbytes));
  }
  if (word_of(lanes.size() - 1, kReceived) >= kWords) {
    throw std::invalid_argument(std::to_string(lanes.size()) + " lanes do not fit a record's first page");
  }
}

std::byte* map_page(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    throw std::system_error(errno, std::generic_category(), "reading the record's size");
  }
  if (status.st_size < static_cast<off_t>(kPage)) {  // touching a page beyond the end would raise SIGBUS
    throw std::invalid_argument("a record of " + std::to_string(status.st_size) + " bytes has no page of marks");
  }
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mapping the record");
  }
  return static_cast<std::byte*>(page);
}

}  // namespace

Marks::Marks(int record_fd, std::uint64_t nbytes, std::vector<Bounds> lanes)
    : nbytes_(nbytes), lanes_(std::move(lanes)) {
  check_lanes(nbytes_, lanes_);
  page_ = map_page(record_fd);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Bounds bounds = lanes_[lane];
    const std::uint64_t verified = this->verified(lane);
    const std::uint64_t received = this->received(lane);
    if (verified < bounds.start || received < verified || received > bounds.end) {
      munmap(page_, kPage);
      throw std::invalid_argument("lane " + range(bounds) + " is marked as verified to " + std::to_string(verified) +
                                  " and received to " + std::to_string(received));
    }
  }
}

Marks::~Marks() { munmap(page_, kPage); }

std::uint64_t Marks::verified(std::size_t lane) const { return mark(lane, kVerified); }

std::uint64_t Marks::received(std::size_t lane) const { return mark(lane, kReceived); }

void Marks::set_verified(std::size_t lane, std::uint64_t offset) {
  {
    const std::lock_guard held(lock_);
    check_open();
    raise_verified(lane, offset);
  }
  changed(true);
}

void Marks::set_received(std::size_t lane, std::uint64_t offset) {
  {
    const std::lock_guard held(lock_);
    check_open();
    if (const Bounds lane_bounds = bounds(lane); offset < verified(lane) || offset > lane_bounds.end) {
      throw std::invalid_argument("lane " + range(lane_bounds) + ", verified to " + std::to_string(verified(lane)) +
                                  ", can't be received to " + std::to_string(offset));
    }
    word(word_of(lane, kReceived)).store(offset, std::memory_order_release);
  }
  changed(false);
}

void Marks::fill() {
  {
    const std::lock_guard held(lock_);
    check_open();
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      raise_verified(lane, lanes_[lane].end);
    }
  }
  changed(true);
}

std::uint64_t Marks::total_verified() const {
  std::uint64_t total = 0;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    total += verified(lane) - lanes_[lane].start;
  }
  return total;
}

std::uint64_t Marks::valid_end(std::uint64_t offset) const {
  const auto found = std::upper_bound(lanes_.begin(), lanes_.end(), offset,
                                      [](std::uint64_t at, const Bounds& lane) { return at < lane.end; });
  std::uint64_t end = offset;
  for (auto lane = static_cast<std::size_t>(found - lanes_.begin()); lane < lanes_.size(); ++lane) {
    end = std::max(end, verified(lane));
    if (end < lanes_[lane].end) {
      break;
    }
  }
  return end;
}

std::uint64_t Marks::wait_valid(std::uint64_t offset, std::uint64_t end, Duration patience) {
  check_open();
  std::uint64_t valid = valid_end(offset);
  if (valid >= end || patience <= Duration::zero()) {
    return valid;
  }
  const Time deadline = Clock::now() + patience;
  std::unique_lock held(lock_);
  news_.wait_until(held, deadline, [&] {
    valid = valid_end(offset);
    return valid >= end || closed();
  });
  check_open();
  return valid;
}

std::uint64_t Marks::add(Counter counter, std::uint64_t value) {
  const std::uint64_t sum =
      word(static_cast<std::size_t>(counter)).fetch_add(value, std::memory_order_relaxed) + value;
  changed(false);
  return sum;
}

std::uint64_t Marks::counter(Counter counter) const {
  return word(static_cast<std::size_t>(counter)).load(std::memory_order_relaxed);
}

void Marks::close() noexcept {
  {
    const std::lock_guard held(lock_);
    closed_.store(true, std::memory_order_release);
  }
  changed(true);
}

std::atomic_ref<std::uint64_t> Marks::word(std::size_t index) const noexcept {
  static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(page_ + kFirstWord + index * sizeof(std::uint64_t)));
}

std::uint64_t Marks::mark(std::size_t lane, std::size_t which) const {
  const std::uint64_t start = bounds(lane).start;
  const std::uint64_t value = word(word_of(lane, which)).load(std::memory_order_acquire);
  return value == 0 ? start : value;
}

// Received goes first: a kill between the two stores leaves verified <= received.
void Marks::raise_verified(std::size_t lane, std::uint64_t offset) {
  if (const Bounds lane_bounds = bounds(lane); offset < verified(lane) || offset > lane_bounds.end) {
    throw std::invalid_argument("lane " + range(lane_bounds) + ", verified to " + std::to_string(verified(lane)) +
                                ", can't be verified to " + std::to_string(offset));
  }
  if (received(lane) < offset) {
    word(word_of(lane, kReceived)).store(offset, std::memory_order_release);
  }
  word(word_of(lane, kVerified)).store(offset, std::memory_order_release);
}

void Marks::check_open() const {
  if (closed()) {
    throw MarksClosed("the arena was closed");
  }
}

// Writers stored under the lock before this, so that a waiter either saw the news or sleeps already.
void Marks::changed(bool wake) noexcept {
  generation_.fetch_add(1, std::memory_order_acq_rel);
  if (wake) {
    news_.notify_all();
  }
}

}  // namespace flashboot
