// The parent's side of the chunk protocol, once the metadata is through: Pull frames in, bytes out.
//
// What always holds: bytes above the marks never leave; replies come in the order of the requests; after an empty reply
// at offset o, every request beyond o is answered empty, so that a child never gets a later byte before an earlier one;
// no child keeps the thread longer than the limits allow.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "clock.hpp"
#include "egress.hpp"
#include "marks.hpp"
#include "stream.hpp"

namespace flashboot {

struct ServeLimits {
  Duration idle;     // between two requests
  Duration silence;  // in which the child must take a byte of a reply, or send one of a request that it began
  Duration reply;    // in which it must take a whole one; waiting for a bucket does not count
};

// Returns when the child ended the connection between two frames. `memory` is the arena. Throws StreamTorn,
// StreamTimeout, StreamBroken, and between two frames MarksClosed.
void serve(Stream& stream, Marks& marks, std::span<const std::byte> memory, Served& served,
           const std::vector<std::shared_ptr<EgressBucket>>& buckets, const ServeLimits& limits);

}  // namespace flashboot
