// Memory for many small objects of Python's, made present by a thread that has no GIL.
//
// A page that is touched for the first time costs microseconds, and 20,000 tensors with their names touch more than a
// thousand. What always holds: Python gets no more memory than it asks for, frees it as its own, and the rest goes with
// this object; where Python's allocator is not the one that it comes with, nothing is lent.
#pragma once

#include <Python.h>

#include <cstddef>

namespace flashboot {

class PresentArenas {
 public:
  explicit PresentArenas(std::size_t bytes);
  ~PresentArenas();
  PresentArenas(const PresentArenas&) = delete;
  PresentArenas& operator=(const PresentArenas&) = delete;
  PresentArenas(PresentArenas&&) = delete;
  PresentArenas& operator=(PresentArenas&&) = delete;

  // While one lives, with the GIL, Python's new arenas are pieces of this memory, as long as there is some.
  class Lent {
   public:
    explicit Lent(PresentArenas& from);
    ~Lent();
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    Lent(Lent&&) = delete;
    Lent& operator=(Lent&&) = delete;

   private:
    static void* piece(void* self, std::size_t bytes);
    static void free(void* self, void* memory, std::size_t bytes);

    PresentArenas& from_;
    PyObjectArenaAllocator own_{};
    bool lent_;
  };

 private:
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace flashboot
