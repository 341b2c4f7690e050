// Python's door to the hot loops; _native.pyi is its contract.
#include <nanobind/nanobind.h>

#include "bindings.hpp"

NB_MODULE(_native, module) {
  nanobind::set_leak_warnings(false);  // an engine that ends while its layout is alive is no fault to tell its user
  module.doc() = "The host's hot loops in C++.";
  flashboot::bind_digest(module);
  flashboot::bind_stream(module);
  flashboot::bind_marks(module);
  flashboot::bind_clone(module);
  flashboot::bind_load(module);
  flashboot::bind_checkpoint(module);
  flashboot::bind_delta(module);
  flashboot::bind_layout(module);
  flashboot::bind_torch(module);
}
