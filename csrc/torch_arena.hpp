// The tensors of a whole arena, made by a thread that has no GIL while the process still imports torch.
//
// They lie in a mapping of this process's own, which goes with the last of them. What always holds: every handle that
// nobody took is dropped; nothing of Python is touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layout_table.hpp"
#include "torch_views.hpp"

namespace flashboot {

// Waits until somebody has loaded `library` and its constructors have run; false once `stop` was set.
[[nodiscard]] bool wait_for_library(const std::string& library, const std::atomic<bool>& stop);

class TorchArena {
 public:
  // Maps the arena behind `descriptor` for reading. Raises std::runtime_error: torch lacks a function (from 2.11 on it
  // has them all), or the file is smaller than the layout says, or it can't be mapped.
  TorchArena(const std::string& library, const LayoutTable& table, int descriptor);
  ~TorchArena() { shims_.drop(handles_); }
  TorchArena(const TorchArena&) = delete;
  TorchArena& operator=(const TorchArena&) = delete;
  TorchArena(TorchArena&&) = delete;
  TorchArena& operator=(TorchArena&&) = delete;

  // One per tensor of the table, null for those that are not over the arena's own bytes.
  [[nodiscard]] std::span<const TorchShims::Handle> handles() const noexcept { return handles_; }

 private:
  TorchShims shims_;
  std::vector<TorchShims::Handle> handles_;
};

}  // namespace flashboot
