// What a fuzz target says when the code under test breaks its contract.
#pragma once

#include <cstdio>
#include <cstdlib>

// Never compiled out, as assert would be.
inline void require(bool held, const char* what) {
  if (!held) {
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
}
