// What the hot loops throw. bind_*.cpp give each of them to Python under the same name (_native.pyi).
#pragma once

#include <stdexcept>

namespace flashboot {

// The connection broke or was closed, on either side.
struct StreamBroken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An operation did not end within its deadline.
struct StreamTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The peer's bytes make no frame of the chunk protocol.
struct StreamTorn : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The peer's certificate, protocol version or name is not what it must be.
struct TlsRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The arena goes; whoever waited for its bytes is told.
struct MarksClosed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file is no sound checkpoint; the message wants the file's name before it.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file ends before what its header speaks of; the message wants the file's name before it.
struct Truncated : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace flashboot
